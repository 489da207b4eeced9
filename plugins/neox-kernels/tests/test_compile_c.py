"""C functions that are compiled at their first use."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from neox_kernels.compile_c import _tell, native

TWICE = 'extern "C" int twice(int number) { return 2 * number; }'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    native.cache_clear()
    _tell.cache_clear()
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


@pytest.mark.parametrize("left", [0, 4096, 9000])
def test_compiled_again_when_a_file_has_lost_its_end(folder: Path, left: int) -> None:
    """As with the power, or on a full disk. In a process of its own, which loading such a file may kill."""
    source = folder / "twice.cpp"
    source.write_text(TWICE)
    code = f"import pathlib, neox_kernels.compile_c as c; print(c.native(pathlib.Path({str(source)!r})).twice(4))"
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (0, b"8\n"), done.stderr
        (built,) = (folder / "cache/neox").iterdir()
        assert built.stat().st_size > left
        os.truncate(built, left)


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


def test_none_where_it_cannot_be_and_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder / "broken.cpp"
    source.write_text("no C")
    assert native(source) is None
    assert list((folder / "cache/neox").iterdir()) == []
    assert re.search(
        r"^note: \S+ cannot compile broken\.cpp: .*error.*some steps take longer$", capsys.readouterr().err
    )
    source = folder / "twice.cpp"
    source.write_text(TWICE)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(folder))
        for file in (source, folder / "broken.cpp"):
            native.cache_clear()
            assert native(file) is None
        assert capsys.readouterr().err.count("note: there is no C++ compiler (c++, g++, clang++);") == 1
        _tell.cache_clear()
        patched.setenv("RANK", "1")
        native.cache_clear()
        assert native(source) is None
        assert capsys.readouterr().err == ""
    native.cache_clear()
    (folder / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "file"))
    assert native(source) is None
    assert "note: twice.cpp cannot be compiled: " in capsys.readouterr().err
