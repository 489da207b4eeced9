"""Files that are not what they are taken for, and where what can be made again is kept."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from neox_core.files import NotAFileError, cache_folder, lock, open_file, read_bytes, replacing


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "/dev/random", "/dev/stdin"])
def test_a_pipe_or_a_device_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    if name == "/dev/stdin" and Path(name).is_file():
        pytest.skip("the standard input is a file here")
    with pytest.raises(NotAFileError, match="is not a regular file"):
        open_file(tmp_path / name)


def test_a_folder_and_a_missing_file_are_what_the_system_calls_them(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        open_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "none")


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotAFileError, match="is not a regular file"), replacing(tmp_path / "pipe") as new:
        new.write_text("new")
    assert (tmp_path / "pipe").is_fifo()
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]


def test_no_more_is_read_than_such_a_file_may_have(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    assert read_bytes(file, 3) == b"abc"
    with pytest.raises(NotAFileError, match="is larger than 2 bytes"):
        read_bytes(file, 2)
    with file.open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(NotAFileError, match="is larger than 1 MiB"):
        read_bytes(file, 1 << 20)


def test_the_cache_folder_is_absolute_and_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the XDG base directory specification has ignored
    assert cache_folder() == tmp_path / ".cache" / "neox"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "deep" / "cache"))
    assert cache_folder().is_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    with pytest.raises(OSError, match="Not a directory"):
        cache_folder()


def test_a_file_is_replaced_when_the_block_ends_well(tmp_path: Path) -> None:
    place = tmp_path / "record.json"
    place.write_text("old")
    with replacing(place) as new:
        new.write_text("new")
        assert place.read_text() == "old"
    assert place.read_text() == "new"
    with suppress(KeyboardInterrupt), replacing(place) as new:
        new.write_text("half")
        raise KeyboardInterrupt
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("record.json", "new")]


def test_one_process_holds_a_lock_until_it_closes_the_file(tmp_path: Path) -> None:
    code = "import os, sys; from neox_core.files import lock; print(lock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)))"
    command = [sys.executable, "-c", code, str(tmp_path / ".lock")]

    def another_gets_it() -> bool:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout == "True\n"

    with (tmp_path / ".lock").open("ab") as file:
        assert lock(file.fileno())
        assert not another_gets_it()
    assert another_gets_it()
