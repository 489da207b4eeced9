"""What a terminal shows until a run trains."""

import io
import sys

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
