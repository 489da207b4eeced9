"""C functions that are compiled at their first use."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from neox_kernels.compile_c import native

TWICE = 'extern "C" int twice(int number) { return 2 * number; }'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    native.cache_clear()
    return tmp_path


def test_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder / "twice.cpp"
    source.write_text(TWICE)
    library = native(source)
    assert library is not None
    assert library.twice(ctypes.c_int(21)) == 42
    (built,) = (folder / "cache/neox").iterdir()
    native.cache_clear()
    monkeypatch.setattr("neox_kernels.compile_c.subprocess.run", pytest.fail)
    again = native(source)
    assert again is not None
    assert again.twice(ctypes.c_int(4)) == 8
    assert list((folder / "cache/neox").iterdir()) == [built]


def test_compiled_again_when_what_it_includes_is_another(folder: Path) -> None:
    source, included = folder / "twice.cpp", folder / "more.h"
    source.write_text(
        '#include <cmath>\n#include "more.h"\nextern "C" int times(int number) { return FACTOR * number; }'
    )
    for factor in (2, 3):
        included.write_text(f"#define FACTOR {factor}\n")
        native.cache_clear()
        library = native(source)
        assert library is not None
        assert library.times(ctypes.c_int(21)) == factor * 21
    included.unlink()
    native.cache_clear()
    assert native(source) is None


def test_of_processes_that_come_at_once_one_compiles(folder: Path) -> None:
    source, compiler = folder / "twice.cpp", folder / "bin/c++"
    source.write_text(TWICE)
    compiler.parent.mkdir()
    compiler.write_text(f'#!/bin/sh\necho run >> {folder}/runs\nsleep 1\nexec {shutil.which("c++")} "$@"\n')
    compiler.chmod(0o755)
    code = f"import pathlib, neox_kernels.compile_c as c; print(c.native(pathlib.Path({str(source)!r})).twice(4))"
    env = {**os.environ, "PATH": f"{compiler.parent}:{os.environ['PATH']}"}
    started = [subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE) for _ in range(3)]
    assert [each.communicate()[0] for each in started] == [b"8\n"] * 3
    assert (folder / "runs").read_text() == "run\n"


def test_none_where_it_cannot_be(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder / "broken.cpp"
    source.write_text("no C")
    assert native(source) is None
    assert list((folder / "cache/neox").iterdir()) == []
    source = folder / "twice.cpp"
    source.write_text(TWICE)
    monkeypatch.setenv("PATH", str(folder))
    assert native(source) is None
    native.cache_clear()
    monkeypatch.undo()
    (folder / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "file"))
    assert native(source) is None
