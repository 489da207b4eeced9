"""What a terminal shows until a run trains."""

import io
import subprocess
import sys
import textwrap

import pytest

from neox_core.run.startup import DOING, Startup


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def put(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return lambda out: monkeypatch.setattr(sys, "stdout", out) or out


def test_a_terminal_shows_each_part_of_the_start_and_then_nothing(put):
    out = put(Terminal())
    startup = Startup(0.0)
    startup.mark("host", at=1.0)
    startup.mark("launch", at=3.0)
    startup.show()
    for part in [*DOING][2:-1]:
        assert DOING[part] in out.getvalue()
        startup.mark(part)
        startup._bar.refresh()
    startup.hide()
    text = out.getvalue()
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back
    assert text.endswith(("\x1b[2K", "\x1b[2K\r"))  # the line is gone
    assert startup.progress.doing == DOING["first_step"]
    startup.mark("first_step")
    assert startup.progress.doing == ""
    assert startup.values()["startup_host_s"] == 1.0
    assert startup.values()["startup_launch_s"] == 2.0


def test_a_log_file_gets_nothing(put):
    out = put(io.StringIO())
    startup = Startup(0.0)
    startup.mark("launch")
    startup.show()
    startup.mark("imports")
    startup.hide()
    assert out.getvalue() == ""


FEW_FILES = """
    import os, resource, sys
    from pathlib import Path
    limit = lambda: resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1000))
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    sys.argv = ["rank", str(Path(sys.argv[1]) / "run.json")]
    from neox_core.run import rank
    rank.read_runfile = lambda *_: print(*limit(), flush=True) or sys.exit(0)
    rank.main()
"""


def test_a_rank_may_open_as_many_files_as_the_system_allows(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(FEW_FILES), str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stdout == "1000 1000\n"
