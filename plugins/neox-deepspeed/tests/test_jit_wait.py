"""A lock that a killed compilation has left, met by torch's own loader of extensions."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from neox_deepspeed import jit_wait
from neox_deepspeed.patches import bound_waits
from torch.utils.cpp_extension import load
from torch.utils.file_baton import FileBaton

from neox_core.errors import ConfigError


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("wait", "try_acquire"):
        monkeypatch.setattr(FileBaton, name, getattr(FileBaton, name))
    bound_waits()
    (tmp_path / "op.cpp").write_text("")
    (tmp_path / "lock").touch()
    return tmp_path / "lock"


def test_an_old_lock_is_named(lock: Path) -> None:
    os.utime(lock, (0, 0))
    with pytest.raises(ConfigError, match=f"(?s){lock}: .*killed.*delete this file"):
        load("op", str(lock.parent / "op.cpp"), build_directory=str(lock.parent))


def test_a_new_lock_is_waited_for_and_said(
    lock: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jit_wait, "SAID_AFTER_S", 0.0)
    threading.Timer(0.5, lock.unlink).start()
    FileBaton(str(lock)).wait()
    assert not lock.exists()
    assert capsys.readouterr().err.count(f"delete {lock}") == 1


def holder(lock: Path) -> "subprocess.Popen[str]":
    """A process that holds the lock."""
    script = f"""
import time
from neox_deepspeed.patches import bound_waits
from torch.utils.file_baton import FileBaton
bound_waits()
print(FileBaton({str(lock)!r}).try_acquire(), flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def test_the_lock_of_a_killed_process_is_taken_over(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock.unlink()
    with holder(lock) as process:
        assert not FileBaton(str(lock)).try_acquire(), "its holder lives"
        process.send_signal(signal.SIGKILL)
    baton = FileBaton(str(lock))
    assert baton.try_acquire()
    assert f"{lock}: the process that compiled this op is gone" in capsys.readouterr().err
    assert not FileBaton(str(lock)).try_acquire()
    baton.release()
    assert [each.name for each in lock.parent.iterdir()] == ["op.cpp"]


def test_a_process_that_is_killed_while_another_one_waits_is_noticed(lock: Path) -> None:
    lock.unlink()
    with holder(lock) as process:
        threading.Timer(0.5, process.kill).start()
        with pytest.raises(ConfigError, match=f"(?s){lock}: .*ended too early.*start again"):
            FileBaton(str(lock)).wait()


def test_a_lock_of_another_kernel_is_not_taken_over(lock: Path) -> None:
    lock.write_text("elsewhere process 1 under 00000000-0000-0000-0000-000000000000\n")
    assert not FileBaton(str(lock)).try_acquire()
    lock.unlink()
    assert FileBaton(str(lock)).try_acquire()
