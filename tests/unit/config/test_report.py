"""The report: order, form, colour, exit code."""

import io

import pytest

from neox_core.config.problem import Problem
from neox_core.config.report import ProblemsError, render, wants_colour


def test_form_and_order() -> None:
    error = ProblemsError(
        [
            Problem("is required", "seed"),
            Problem("is odd", "b", "make it even", "x.yml:10:1"),
            Problem("is old", "a", "", "x.yml:9:1", "note"),
            Problem("is odd", "b", "make it even", "x.yml:10:1"),
            Problem("cannot be read", where="a.toml"),
        ]
    )
    assert str(error).splitlines() == [
        "the configuration has 3 errors:",
        "a.toml: error: cannot be read",
        "x.yml:9:1: note: a: is old",
        "x.yml:10:1: error: b: is odd (make it even)",
        "error: seed: is required",
    ]
    assert error.exit_code == 2


def test_a_config_cannot_steer_the_terminal() -> None:
    line = render([Problem("is \x1b[2J odd\nerror: forged", "k\x07", "h\ud800")])
    assert line == "error: k\\x07: is \\x1b[2J odd\\nerror: forged (h\\ud800)"


def test_one_error_is_singular_and_a_plugins_fault_has_its_exit_code() -> None:
    error = ProblemsError([Problem("x", exit_code=3)])
    assert str(error).startswith("the configuration has 1 error:")
    assert error.exit_code == 3


def test_colour_only_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert wants_colour(Terminal())
    assert not wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())
    assert "\x1b[31merror\x1b[0m" in render([Problem("x")], colour=True)
    assert "\x1b" not in render([Problem("x")])
