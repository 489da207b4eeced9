import io
import math
import re
import sys
from pathlib import Path

import pytest
from neox_monitors.console import Console, clock, describe_startup
from neox_monitors.curve import draw

from neox_core.contracts.host import RunInfo

VALUES = {
    "loss": 2.34567,
    "lr": 6e-4,
    "grad_norm": 1.234,
    "tokens_per_s": 12345.6,
    "step_s": 0.5,
    "data_wait_s": 0.001,
    "memory_gib": 1.5,
    "skipped_steps": 0.0,
    "mfu": 0.417,
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def make(monkeypatch):
    def make(out, first=0, last=20, width="140"):
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", width)
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            monkeypatch.delenv(name, raising=False)
        return Console(RunInfo(Path(), first, last, 5_120_000, 2, 512, "cpu", 8), None)

    return make


def test_plain_lines_when_nobody_watches(make):
    out = io.StringIO()
    console = make(out)
    console.log(10, VALUES)
    first, line = out.getvalue().splitlines()
    assert first == "5.12 M parameters on 2 cpu ranks, 512 tokens a step, steps 1 to 20"
    assert line == ("step 10/20  loss 2.3457  lr 6.00e-04  grad 1.23  12,346 tok/s  500 ms  mfu 42%  1.50 GiB  5s left")
    assert "\x1b" not in out.getvalue()


def test_what_components_measure_is_shown(make):
    out = io.StringIO()
    make(out).log(10, {**VALUES, "objective_z": 37.4751, "feed_forward_router_z": 0.00345, "tflops": 1.0})
    line = out.getvalue().splitlines()[-1]
    assert line.endswith("1.50 GiB  objective_z 37.48  feed_forward_router_z 0.00345  5s left")


def test_long_lines_are_not_broken(make):
    out = io.StringIO()
    make(out).say("x" * 500)
    assert out.getvalue().splitlines()[-1] == "x" * 500


def test_text_in_brackets_is_no_markup(make):
    """A sample of Python is full of them."""
    out = io.StringIO()
    make(out).say("def f(x: list[int]) -> [/red]:")
    assert "def f(x: list[int]) -> [/red]:" in out.getvalue()


def test_a_terminal_gets_a_bar_that_ends_with_the_cursor_back(make):
    out = Terminal()
    console = make(out)
    console.log(10, VALUES)
    console.say("saved somewhere")
    console.close()
    text = out.getvalue()
    assert "10/20" in text
    assert "saved somewhere" in text
    assert text.rindex("\x1b[?25h") > text.index("\x1b[?25l")  # the cursor was hidden, and is shown again


@pytest.mark.parametrize("width", ["60", "80", "140"])
def test_the_bar_moves_between_two_logs_and_tells_what_the_run_does(make, width):
    out = Terminal()
    console = make(out, last=5000, width=width)
    console.log(10, VALUES)
    for step, doing in ((1234, ""), (1235, "saving"), (1236, "[/red]")):
        console.run.progress.reached(step)
        console.run.progress.now(doing)
        out.truncate(0)
        console.bar.refresh()  # as its thread does several times a second
        bar, values = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\0", "", out.getvalue()).splitlines()[-2:]
        assert f"{step}/5000 ━" in bar
        assert doing in bar
        assert values.startswith("loss 2.3457  lr 6.00e-04")
        assert len(values) <= int(width)
    console.close()


def test_what_others_print_stands_above_the_bar_on_a_line_of_its_own(make):
    out = Terminal()
    console = make(out)
    console.log(10, VALUES)
    sys.stdout.write("[Rank 0] time (ms) | fwd: 1.0\n")
    console.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert re.search(r"[\r\n]\[Rank 0\] time \(ms\) \| fwd: 1\.0\n", text)
    assert sys.stdout is out  # and afterwards it is as it was


def test_trouble_is_in_the_line(make):
    out = io.StringIO()
    make(out).log(10, {**VALUES, "skipped_steps": 3.0, "data_wait_s": 0.2})
    line = out.getvalue().splitlines()[-1]
    assert "3 skipped" in line
    assert "data wait 200 ms" in line


def test_the_curve_comes_at_the_last_step_and_not_after_a_stop(make):
    for steps, shown in (((5, 10), False), ((10, 20), True)):
        out = io.StringIO()
        console = make(out)
        for step in steps:
            console.log(step, VALUES)
        console.log(steps[-1], {"valid_loss": 2.0, "valid_perplexity": math.e**2})
        console.close()
        assert ("loss by step" in out.getvalue()) is shown
        assert f"step {steps[-1]}  valid loss 2.0000, perplexity 7.389" in out.getvalue()


def test_many_points_are_thinned_and_the_ends_kept(make):
    console = make(io.StringIO(), last=10_000)
    for step in range(1, 10_001):
        console.log(step, {**VALUES, "loss": float(step)})
    assert len(console.train) <= 2000
    assert console.train[0] == (1, 1.0)
    assert console.train[-1][0] > 9900


def test_a_reader_that_goes_is_an_error_and_not_the_end_of_the_process(make):
    class Pipe(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    console = make(io.StringIO())
    console.console.file = Pipe()
    with pytest.raises(BrokenPipeError, match="nothing reads"):
        console.log(1, VALUES)


def test_the_start_up_in_one_line():
    text = describe_startup({"startup_host_s": 0.44, "startup_process_group_s": 1.0, "startup_total_s": 1.44})
    assert text == "start-up 1.4 s: host 0.4, process group 1.0"


@pytest.mark.parametrize(("seconds", "text"), [(49.4, "49s"), (59.7, "1m00s"), (125, "2m05s"), (7260, "2h01m")])
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_the_curve_falls_across_the_chart():
    lines = draw([(0, 10.0), (1, 0.0)], width=40, height=12)
    inside = [line.partition("┤")[2] or line.partition("│")[2] for line in lines[1:-2]]
    starts = [len(line) - len(line.lstrip()) for line in inside]
    assert starts == sorted(starts)
    assert starts[0] == 0
    assert starts[-1] > 25
    assert lines[1].lstrip().startswith("10.0")
    assert not any("\x1b" in line for line in lines)


def test_marks_are_put_where_they_belong():
    lines = draw([(0, 4.0), (10, 4.0)], [(10, 0.0)], width=40, height=12)
    (bottom,) = (line for line in lines if "o" in line)
    assert bottom == lines[-3]
    assert bottom.rstrip("│").endswith("o")


def test_a_flat_curve_and_a_single_point_can_be_drawn():
    assert draw([(0, 3.0), (9, 3.0)], width=30, height=8)
    assert draw([(1, 1.0)], width=30, height=8)
