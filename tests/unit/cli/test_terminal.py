"""What reaches a terminal."""

import io
import json
import sys

import pytest

from neox_core.config.problem import Problem
from neox_core.config.report import ProblemsError, as_list
from neox_core.errors import UsageError, in_words
from neox_core.terminal import Own, cut, echo, echo_json, one_line, paint, printable, readable

ALL = "".join(map(chr, range(0x110000)))


def test_no_character_that_steers_is_left_and_no_other_is_touched() -> None:
    """Categories of Unicode: Cc are controls, Cs half characters; Bidi_Control is a property of its own (PropList)."""
    import unicodedata

    bidi = {0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
    steering = {c for c in ALL if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or ord(c) in bidi} - {"\t", "\n"}
    assert {c for c in ALL if printable(c) != c} == steering
    assert {c for c in steering if printable(c).isprintable()} == steering
    assert printable("a\x1b[2J\x9b\r\ud800\u202e\n\tb") == r"a\x1b[2J\x9b\r\ud800\u202e" + "\n\tb"
    family = "\U0001f469\u200d\U0001f467\u3000\u00a0"  # a joiner and spaces that text of many languages has
    assert printable(family) == family
    assert one_line("a\nb\u200b") == r"a\nb\u200b"


def test_only_our_own_codes_reach_the_stream(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    painted = paint("is \x1b[5m", "red", "bold")
    echo(painted, " \x1b[5m")
    assert capsys.readouterr().out == "\x1b[31;1mis \\x1b[5m\x1b[0m \\x1b[5m\n"
    echo(painted + "", end="")
    assert "\x1b" not in capsys.readouterr().out, "what is made of it is ordinary text"
    monkeypatch.setenv("NO_COLOR", "1")
    assert paint("x", "red") == "x"


def test_a_stream_that_cannot_encode_gets_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    echo("naïve")
    assert raw.getvalue() == b"na\\xefve\n"


def test_json_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"\x7f\x1b": ["\ud800", "\x9b"]}
    echo_json(value)
    out = capsys.readouterr().out
    assert json.loads(out) == value
    assert printable(out) == out


def test_long_messages_are_cut_with_their_beginning_and_end() -> None:
    said = cut("begin " + "x" * 70_000 + " end", 100)
    assert said.startswith("begin x")
    assert said.endswith("x end")
    assert "69,910 more characters" in said
    assert cut("short", 5) == "short"
    many = readable("line\n" * 70_000)
    assert many.endswith("and 69,751 more lines")
    assert len(UsageError("x" * 70_000, hint="y" * 70_000).shown()) < 5_000
    long = ProblemsError([Problem("x" * 70_000, "k" * 70_000, "h" * 70_000, "w" * 70_000)])
    assert len(long.shown()) < 5_000
    assert len(json.dumps(as_list(long.problems))) < 8_000


def test_memory_that_has_run_out_is_said_in_words() -> None:
    error = in_words(MemoryError())
    assert error is not None
    assert "memory ran out" in error.message
    assert "ulimit -v" in error.hint
    assert in_words(RuntimeError()) is None


def test_a_style_survives_as_a_part_only() -> None:
    assert not isinstance(Own("x") + "y", Own)
    assert not isinstance(f"{Own('x')}", Own)
