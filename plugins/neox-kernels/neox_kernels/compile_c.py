"""Small C functions of a plugin, compiled in seconds at their first use on a machine.

For loops that take one pass over memory where torch takes several. The caller also has a version in torch.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from neox_core.files import cache_folder, lock

if TYPE_CHECKING:
    from torch import Tensor

COMPILERS = ("c++", "g++", "clang++")
# No -ffast-math: linking with it changes how the whole process rounds. Only NaN's order and zero's sign are given up.
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

INCLUDED = re.compile(r'^#include "(.+)"', re.MULTILINE)


def native_for(source: Path, *tensors: Tensor) -> ctypes.CDLL | None:
    """`native` for tensors that its functions can read: fp32 or bytes, contiguous, in host memory; else None."""
    import torch  # imported here, since users of loops over indices do not need torch

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
    try:
        library = cache_folder() / f"{source.stem}-{_key(source, compiler, flags)}.so"
        if not library.is_file():
            turn = os.open(library.parent, os.O_RDONLY)  # a folder of the user's own, which no other user can lock
            try:
                lock(turn, wait=True)  # of the ranks of a host, which come here at once, one compiles
                if not library.is_file():
                    _compile(compiler, flags, source, library)
            finally:
                os.close(turn)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.SubprocessError):
        return None


def _compile(compiler: str, flags: Sequence[str], source: Path, library: Path) -> None:
    """Compile to a temporary file, then rename it, so that no process sees an incomplete file."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / library.name
        argv = [compiler, *flags, str(source), "-o", str(built)]
        subprocess.run(argv, check=True, capture_output=True, timeout=120)
        built.replace(library)


def _texts(source: Path) -> list[str]:
    """Of a file, and of those of the plugin that it includes."""
    text = source.read_text(encoding="utf-8")
    return [text, *((source.parent / name).read_text(encoding="utf-8") for name in INCLUDED.findall(text))]


def _key(source: Path, compiler: str, flags: Sequence[str]) -> str:
    """A digest of everything that the result depends on: machines with other processors may share a home folder."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8", errors="replace").splitlines() if cpu.is_file() else []
    features = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    parts = (*_texts(source), compiler, *flags, platform.platform(), *features)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
