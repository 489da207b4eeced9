"""Writes to a terminal. Text may come from a file, a host or a plugin, so its control characters are escaped."""

import json
import os
import re
import sys
from typing import Any, TextIO

_STEERING = (
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and newline
    # characters that change the direction of text, or end a line
    r"\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
    r"\ud800-\udfff]"  # lone surrogates, which no stream can encode
)
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
LONGEST_LINE = 2000
MOST_LINES = 250


class Own(str):
    """Text whose escape sequences are neox's own. The result of `+` or `format` is ordinary text again."""

    __slots__ = ()


def printable(text: str) -> str:
    """The text with control characters escaped as Python does. Newlines and tabs stay."""
    if text.replace("\n", "").isprintable():  # most are, and need no pattern, which takes 1 ms to compile
        return text
    return re.sub(_STEERING, lambda found: repr(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """The text as part of a line: everything except visible characters and spaces is escaped as Python does."""
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def cut(text: str, most: int) -> str:
    """The text cut to about `most` characters: the start and the end of a longer one, and how much is left out."""
    if len(text) <= most:
        return text
    return f"{text[: most * 3 // 4]} ... {len(text) - most:,} more characters ... {text[-(most // 4) :]}"


def readable(text: str) -> str:
    """A message with the length and the number of its lines limited."""
    lines = text.split("\n")
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"... and {len(lines) - MOST_LINES:,} more lines"]
    return "\n".join(cut(line, LONGEST_LINE) for line in lines)


def wants_colour(stream: TextIO) -> bool:
    """Whether to colour the output of a stream: in a terminal, unless NO_COLOR is set."""
    return stream.isatty() and "NO_COLOR" not in os.environ


def paint(text: str, *styles: str, err: bool = False) -> Own:
    """The text in a style (bold, dim or a colour), where its stream shows colours."""
    shown = printable(text)
    if not wants_colour(sys.stderr if err else sys.stdout):
        return Own(shown)
    return Own(f"\x1b[{';'.join(_CODES[style] for style in styles)}m{shown}\x1b[0m")


def echo_json(value: Any) -> None:
    """Write a value as JSON, where escapes are JSON's own."""
    echo(Own(json.dumps(value, indent=1).replace("\x7f", "\\u007f")))


def echo(*parts: str, err: bool = False, end: str = "\n") -> None:
    """Write the parts, one after the other. All output to a user goes through this function or `printable`."""
    text = "".join(part if isinstance(part, Own) else printable(part) for part in parts) + end
    stream = sys.stderr if err else sys.stdout
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()
