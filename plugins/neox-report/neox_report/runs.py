"""`neox runs`: the runs below a folder."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from attrs import asdict, frozen

from neox_core.errors import NeoxError, UsageError
from neox_core.plan.stored.saved import MANIFEST, RUN, STEP_FOLDER
from neox_core.terminal import echo, echo_json, one_line, paint
from neox_report.metrics import last_values
from neox_report.plan import at, require_run
from neox_report.state import state_of

DEEPEST = 4
MOST_FOLDERS = 100_000
"""Looked into, so that a folder with the whole disk below it ends."""
COLOURS = {"running": "green", "finished": "dim", "stopped": "yellow", "failed": "red", "unreadable": "red"}


@frozen
class Listed:
    """A run in a line. step, loss: the newest that it logged; None: it has logged none. age_s: since it last did."""

    folder: str
    state: str
    step: int | None
    last_step: int | None
    loss: float | None
    valid_loss: float | None
    age_s: float | None
    why: str


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option("--json", "as_json", is_flag=True, help="A JSON list instead of lines.")
def runs(folder: Path, as_json: bool) -> None:
    """List the runs below FOLDER (default: here): state, step, loss, and how long ago they wrote.

    A run is running; stopped by a signal; failed, with the reason; or finished, as its config says.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: not a folder", hint="name a folder that has the folders of runs in it")
    listed = [_listed(each) for each in find_runs(folder)]
    listed.sort(key=lambda each: math.inf if each.age_s is None else each.age_s)
    if as_json:
        echo_json([asdict(each) for each in listed])
    elif not listed:
        echo(f"no runs below {folder}")
    else:
        _show(listed)


def find_runs(folder: Path) -> Iterator[Path]:
    """The folders of runs below a folder, itself included, at most DEEPEST levels down; links are not followed."""
    level, seen = [folder], 0
    for _ in range(DEEPEST + 1):
        below: list[Path] = []
        for each in level:
            if (each / RUN).is_file() and not (each / MANIFEST).is_file():
                yield each
            with suppress(OSError), os.scandir(each) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or STEP_FOLDER.fullmatch(entry.name):
                        continue
                    with suppress(OSError):
                        if entry.is_dir(follow_symlinks=False):
                            below.append(Path(entry.path))
            seen += 1
            if seen == MOST_FOLDERS:
                raise UsageError(f"{folder}: more than {MOST_FOLDERS:,} folders", hint="name one nearer to the runs")
        level = sorted(below)


def _listed(folder: Path) -> Listed:
    try:
        plan, (step, values) = require_run(folder), _last(folder)
    except (NeoxError, OSError) as error:
        said = error.message if isinstance(error, NeoxError) else f"{folder}: {error.strerror}"
        return Listed(str(folder), "unreadable", None, None, None, None, None, said)
    state = state_of(folder)
    loss, valid = (_finite(values.get(name)) for name in ("loss", "valid_loss"))
    last = at(plan, "train.train_iters", int)
    return Listed(str(folder), state.name, step, last, loss, valid, round(state.age_s, 1), state.why)


def _last(folder: Path) -> tuple[int | None, dict[str, float]]:
    try:
        return last_values(folder / "metrics.jsonl")
    except FileNotFoundError:
        return None, {}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _show(listed: list[Listed]) -> None:
    names = ("state", "step", "loss", "valid loss", "age", "run")
    rows = [
        (
            each.state,
            "-" if each.step is None else f"{each.step:,}" + ("" if each.last_step is None else f"/{each.last_step:,}"),
            "-" if each.loss is None else f"{each.loss:.4f}",
            "-" if each.valid_loss is None else f"{each.valid_loss:.4f}",
            "-" if each.age_s is None else in_short(each.age_s),
            one_line(each.folder),
        )
        for each in listed
    ]
    widths = [max(len(row[column]) for row in (names, *rows)) for column in range(len(names) - 1)]
    echo(paint(_line(names, widths), "bold"))
    for row, each in zip(rows, listed, strict=True):
        state = paint(f"{row[0]:<{widths[0]}}", COLOURS[each.state])
        echo(state, _line(("", *row[1:]), [0, *widths[1:]]))
        if each.why:
            echo(paint(f"    {one_line(each.why)}", "dim"))


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    cells: list[str] = [f"{row[0]:<{widths[0]}}"]
    cells += [f"{cell:>{width}}" for cell, width in zip(row[1:-1], widths[1:], strict=True)]
    return "  ".join([*cells, row[-1]])


def in_short(seconds: float) -> str:
    """A time in its largest unit: 12s, 5m, 3h, 2d."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def as_plain(value: Any) -> Any:
    """Nan and infinities as null, which JSON has."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: as_plain(inner) for key, inner in value.items()}
    return [as_plain(each) for each in value] if isinstance(value, list | tuple) else value
