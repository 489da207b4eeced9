"""A lock that a killed compilation has left, met by torch's own loader of extensions."""

import os
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
    monkeypatch.setattr(FileBaton, "wait", FileBaton.wait)
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
