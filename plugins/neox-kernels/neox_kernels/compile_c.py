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
from neox_core.terminal import echo
from neox_core.untrusted import short

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

SLOWER = "; without compiled code some steps take longer"

INCLUDED = re.compile(r'^#include "(.+)"', re.MULTILINE)


def native_for(source: Path, *tensors: Tensor) -> ctypes.CDLL | None:
    """`native` for tensors that its functions can read: fp32 or bytes, contiguous, in host memory; else None."""
    import torch  # imported here, since users of loops over indices do not need torch

    types = torch.float32, torch.uint8
    fits = all(each.device.type == "cpu" and each.dtype in types and each.is_contiguous() for each in tensors)
    return native(source) if fits else None


def without_compiler() -> str:
    """What to say where there is no compiler; else ""."""
    return "" if any(map(shutil.which, COMPILERS)) else f"there is no C++ compiler ({', '.join(COMPILERS)}){SLOWER}"


@cache
def native(source: Path, *more_flags: str) -> ctypes.CDLL | None:
    """The functions of a C++ file, for this processor; None where they cannot be compiled or loaded.

    Rank 0, or a process without ranks, prints why they cannot.
    """
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        _tell(without_compiler())
        return None
    flags = (*FLAGS, *more_flags)
    try:
        folder, name = cache_folder(), f"{source.stem}-{_key(source, compiler, flags)}"
        library = _whole(folder, name)
        if library is None:
            turn = os.open(folder, os.O_RDONLY)  # a folder of the user's own, which no other user can lock
            try:
                lock(turn, wait=True)  # of the ranks of a host, which come here at once, one compiles
                library = _whole(folder, name) or _compile(compiler, flags, source, folder, name)
            finally:
                os.close(turn)
        return ctypes.CDLL(str(library))
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode("utf-8", "replace").splitlines()
        first = next((line for line in lines if "error" in line), f"it exits with {error.returncode}")
        _tell(f"{compiler} cannot compile {source.name}: {short(first)}{SLOWER}")
    except (OSError, subprocess.SubprocessError) as error:
        _tell(f"{source.name} cannot be compiled: {short(error)}{SLOWER}")
    return None


@cache
def _tell(why: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        echo("note: ", why, err=True)


def _compile(compiler: str, flags: Sequence[str], source: Path, folder: Path, name: str) -> Path:
    """Compile to a temporary file, then rename it, so that no process sees an incomplete file."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        built = Path(temporary) / name
        argv = [compiler, *flags, str(source), "-o", str(built)]
        subprocess.run(argv, check=True, capture_output=True, timeout=120)
        return built.replace(folder / f"{name}-{_digest(built.read_bytes())}.so")


def _whole(folder: Path, name: str) -> Path | None:
    """A library that holds what its name says: loading one that lost its end with the power would end the process."""
    found = folder.glob(f"{name}-*.so")
    return next((each for each in found if each.stem == f"{name}-{_digest(each.read_bytes())}"), None)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


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
    return _digest("\0".join(parts).encode())
