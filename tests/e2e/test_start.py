"""A script of ranks that hangs: what the test says of it, and that nothing of it is left running."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HANGS = 'echo "2 ranks: Adam-0" >&2; sleep 600 & echo $! > {pid}; wait'


def test_a_script_that_hangs_is_killed_with_its_ranks(tmp_path: Path, run_bounded: Callable[..., Any]) -> None:
    pid = tmp_path / "pid"
    with pytest.raises(pytest.fail.Exception, match=r"still running after 3 s; killed\n2 ranks: Adam-0\n"):
        run_bounded(["sh", "-c", HANGS.format(pid=pid)], 3)
    assert not runs(int(pid.read_text()))


def runs(pid: int) -> bool:
    """Whether a process is there that is not a zombie, which an init process of a container may leave."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
