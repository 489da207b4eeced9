"""Small C functions of a plugin, compiled at their first use on a machine: a second, once.

For what torch does in several passes over memory and a loop does in one. The caller has a form in torch beside it.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from neox_core.files import cache_folder

if TYPE_CHECKING:
    from torch import Tensor

COMPILERS = ("c++", "g++", "clang++")
# No -ffast-math: linking with it changes how the whole process rounds. What is left out are NaN's and zero's signs.
FLAGS = (
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-ffinite-math-only",
    "-fno-signed-zeros",
    "-fno-trapping-math",
    "-shared",
    "-fPIC",
)


def native_for(source: Path, *tensors: Tensor) -> ctypes.CDLL | None:
    """`native` for tensors that are its functions' arrays: fp32 or bytes, contiguous, in host memory; else None."""
    import torch  # here, since what compiles a loop over indices needs none

    types = torch.float32, torch.uint8
    fits = all(each.device.type == "cpu" and each.dtype in types and each.is_contiguous() for each in tensors)
    return native(source) if fits else None


@cache
def native(source: Path, *more_flags: str) -> ctypes.CDLL | None:
    """The functions of a C++ file, for this processor; None where they cannot be compiled or loaded."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return None
    flags = (*FLAGS, *more_flags)
    name = f"{source.stem}-{_key(source, compiler, flags)}.so"
    try:
        library = cache_folder() / name
        if not library.is_file():
            _compile(compiler, flags, source, library)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.SubprocessError):
        return None


def _compile(compiler: str, flags: Sequence[str], source: Path, library: Path) -> None:
    """To a file of its own, then under its name: ranks that do it at once do not see each other's halves."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / library.name
        argv = [compiler, *flags, str(source), "-o", str(built)]
        subprocess.run(argv, check=True, capture_output=True, timeout=120)
        built.replace(library)


def _key(source: Path, compiler: str, flags: Sequence[str]) -> str:
    """Of what the outcome depends on: a home may be shared by machines with other processors."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8", errors="replace").splitlines() if cpu.is_file() else []
    features = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    parts = (source.read_text(encoding="utf-8"), compiler, *flags, platform.platform(), *features)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
