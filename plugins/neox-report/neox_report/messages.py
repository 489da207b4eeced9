"""messages.jsonl of a run: what it said to people, and where it started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from neox_core.files import open_file
from neox_core.terminal import cut, printable
from neox_report.metrics import parse_line

FILE = "messages.jsonl"
TAIL = 1 << 20
"""Bytes at its end that are read."""
MOST = 500
LONGEST = 4000
SAMPLE = "sample:"
"""How the message with a text that the model wrote begins."""


@frozen
class Message:
    step: int
    time: float
    text: str

    @property
    def sample(self) -> str:
        """The text that the model wrote; "" where the message is none."""
        return self.text.removeprefix(SAMPLE).strip() if self.text.startswith(SAMPLE) else ""


def messages_of(folder: Path) -> list[Message]:
    """The last MOST messages of a run. A file that is not there, or cannot be read, has none."""
    found = [
        Message(each["step"], each["time"], cut(printable(each["said"]), LONGEST))
        for each in _records(folder)
        if isinstance(each.get("said"), str)
    ]
    return found[-MOST:]


def last_start(folder: Path) -> Mapping[str, Any]:
    """Where the run was last started: host, device, versions; {} where it does not say."""
    starts = [each["start"] for each in _records(folder) if isinstance(each.get("start"), dict)]
    return starts[-1] if starts else {}


def _records(folder: Path) -> Iterator[dict[str, Any]]:
    try:
        with open_file(folder / FILE) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL))
            lines = file.read(TAIL + 1).split(b"\n")
    except OSError:
        return
    for line in lines[1 if size > TAIL else 0 : -1]:
        record = parse_line(line)
        if record is not None:
            yield record
