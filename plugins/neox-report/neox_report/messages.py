"""messages.jsonl of a run: what it said to people, and where it started; samples.jsonl: what its model wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from neox_core.files import open_file
from neox_core.terminal import cut, printable
from neox_report.metrics import parse_line

FILE = "messages.jsonl"
SAMPLES = "samples.jsonl"
"""By neox-samples, during the run."""
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
    return list(_texts(folder / FILE, "said"))[-MOST:]


def samples_of(folder: Path, messages: Sequence[Message]) -> list[Message]:
    """The last MOST texts that the model wrote, by step, those in `messages` included.

    A run that resumes before a step writes the same text again.
    """
    said = (Message(each.step, each.time, each.sample) for each in messages if each.sample)
    found = {(each.step, each.text): each for each in (*_texts(folder / SAMPLES, "sample"), *said)}
    return sorted(found.values(), key=lambda each: each.step)[-MOST:]


def last_start(folder: Path) -> Mapping[str, Any]:
    """Where the run was last started: host, device, versions; {} where it does not say."""
    starts = [each["start"] for each in _records(folder / FILE) if isinstance(each.get("start"), dict)]
    return starts[-1] if starts else {}


def _texts(path: Path, name: str) -> Iterator[Message]:
    for each in _records(path):
        if isinstance(each.get(name), str):
            yield Message(each["step"], each["time"], cut(printable(each[name]), LONGEST))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with open_file(path) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL))
            lines = file.read(TAIL + 1).split(b"\n")
    except OSError:
        return
    for line in lines[1 if size > TAIL else 0 : -1]:
        record = parse_line(line)
        if record is not None:
            yield record
