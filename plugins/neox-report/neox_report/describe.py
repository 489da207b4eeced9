"""All that a report shows of its runs, as one JSON value."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from attrs import asdict, define, field
from neox_reference.api import flat, in_words

from neox_core.errors import CheckpointError, NeoxError, UsageError
from neox_core.plan.stored.saved import latest_name, step_folders, step_of
from neox_core.terminal import cut, printable
from neox_core.untrusted import read_object, short
from neox_report.attention import attention_of
from neox_report.messages import last_start, messages_of, samples_of
from neox_report.metrics import Metrics
from neox_report.pipeline import pipeline_of
from neox_report.plan import at, require_run, world_size
from neox_report.runs import as_plain
from neox_report.state import state_of
from neox_report.thinned import Thinned

MOST_RUNS = 20
MOST_CHECKPOINTS = 200
MOST_ROWS = 3000
"""Of a config."""
MOST_FILES = 10_000
MOST_PROFILES = 64
_OWN = frozenset({"run_dir", "debug", "checkpoint.resume", "format"})
"""Of the one start of a run, not of what it computes."""
PROFILES = "profiles"


@define(eq=False)
class Report:
    """Runs that are read again at each call of `content`. attention: whether layouts are drawn, which takes seconds."""

    folders: Sequence[Path]
    attention: bool = True
    _metrics: list[Metrics] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        if len(self.folders) > MOST_RUNS:
            raise UsageError(f"{len(self.folders)} runs: a page shows at most {MOST_RUNS}")
        self._metrics = [Metrics(folder / "metrics.jsonl") for folder in self.folders]

    def content(self) -> dict[str, Any]:
        """Raises UsageError for a folder that is not a run, or a file that cannot be read."""
        plans = [require_run(folder) for folder in self.folders]
        names = _names(self.folders)
        rows = [_rows(plan) for plan in plans]
        runs = []
        for folder, metrics, plan, name, config in zip(self.folders, self._metrics, plans, names, rows, strict=True):
            metrics.refresh()
            runs.append(self._run(folder, metrics, plan, name, config))
        content: dict[str, Any] = as_plain({"made": time.time(), "runs": runs, "differs": _differences(rows)})
        return content

    def _run(
        self, folder: Path, metrics: Metrics, plan: Mapping[str, Any], name: str, config: Mapping[str, str]
    ) -> dict[str, Any]:
        state, messages = state_of(folder), messages_of(folder)
        return {
            "name": name,
            "folder": printable(str(folder.resolve())),
            "state": state.name,
            "why": state.why,
            "age_s": round(state.age_s, 1),
            "step": metrics.step,
            "last_step": at(plan, "train.train_iters", int),
            "ranks": world_size(plan),
            "lines": metrics.lines,
            "refused_lines": metrics.refused,
            "cut": metrics.cut,
            "series": {name: _series(each) for name, each in metrics.series.items()},
            "starts": [asdict(each) for each in metrics.starts],
            "rewinds": [asdict(each) for each in metrics.rewinds],
            "checkpoints": list(_checkpoints(folder, plan)),
            "messages": [asdict(each) for each in messages if not each.sample],
            "samples": [asdict(each) for each in samples_of(folder, messages)],
            "environment": _environment(folder, plan),
            "profiles": list(_profiles(folder)),
            "pipeline": pipeline_of(plan),
            "attention": attention_of(folder) if self.attention else "",
            "config": dict(config),
        }


def _names(folders: Sequence[Path]) -> list[str]:
    """A short name for each run, all different: as many of the last parts of its path as that needs."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            break
    else:
        names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
    return [short(name) for name in names]


def _series(series: Thinned) -> dict[str, Any]:
    points = series.points()
    steps, times, values = [each[1] for each in points], [each[2] for each in points], [each[3] for each in points]
    ends = {
        name: None if point is None else {"step": point[1], "value": point[3]}
        for name, point in (("first", series.first), ("last", series.last), ("low", series.low), ("high", series.high))
    }
    return {
        "step": steps,
        "time": [round(each, 1) for each in times],
        "value": [_rounded(each) for each in values],
        "count": series.count,
        "gaps": series.gaps,
        **ends,
    }


def _rounded(value: float) -> float:
    """Six digits, which a picture does not show, in a third of the room."""
    return float(f"{value:.6g}") if math.isfinite(value) else math.nan


def _rows(plan: Mapping[str, Any]) -> dict[str, str]:
    """The plan as `neox config show` prints it, by path."""
    rows = islice(flat(dict(plan)).items(), MOST_ROWS)
    return {short(path): short(in_words(value)) for path, value in rows}


def _differences(rows: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    paths = dict.fromkeys(path for each in rows for path in each if path not in _OWN)
    told = ((path, [each.get(path, "-") for each in rows]) for path in paths)
    return [{"path": path, "values": values} for path, values in told if len(set(values)) > 1]


def _checkpoints(folder: Path, plan: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Those in the folder of `save`, newest first. A folder that was moved since has them where it is now."""
    save, run_dir = at(plan, "checkpoint.save", str), at(plan, "run_dir", str)
    if save is None or "://" in save or "\0" in save:
        return
    place = folder if save == run_dir else Path(save)
    with suppress(OSError, CheckpointError):
        latest = latest_name(place)
        for each in step_folders(place)[:MOST_CHECKPOINTS]:
            with suppress(OSError):
                files = [path.stat() for path in islice(each.iterdir(), MOST_FILES) if path.is_file()]
                written = max(stat.st_mtime for stat in files)
                size = sum(stat.st_size for stat in files)
                yield {
                    "name": each.name,
                    "step": step_of(each),
                    "bytes": size,
                    "time": round(written, 1),
                    "latest": each.name == latest,
                }


def _environment(folder: Path, plan: Mapping[str, Any]) -> dict[str, str]:
    """Where the run started, and the versions in its plan."""
    cluster = {
        "ranks": world_size(plan),
        "device": at(plan, "cluster.device", str),
        "backend": at(plan, "cluster.backend", str),
        "neox": at(plan, "neox_version", str),
    }
    plugins = at(plan, "plugins", dict) or {}
    found = {**cluster, **dict(islice(last_start(folder).items(), 50))}
    found["plugins"] = ", ".join(f"{name} {version}" for name, version in islice(plugins.items(), 200))
    return {short(name): printable(cut(str(value), 3000)) for name, value in found.items() if value not in (None, "")}


def _profiles(folder: Path) -> Iterator[dict[str, Any]]:
    """What `profile` has written: the most expensive operations of a rank, and the names of its files."""
    place = folder / PROFILES
    try:
        files = sorted(islice(place.glob("rank*.json"), MOST_PROFILES))
    except OSError:
        return
    for path in files:
        with suppress(NeoxError):
            raw = read_object(path, UsageError, 1 << 20)
            rows = raw.get("ops")
            if not isinstance(rows, list):
                continue
            ops = [
                {name: _cell(row.get(name)) for name in ("name", "calls", "cpu_ms", "device_ms")}
                for row in rows[:20]
                if isinstance(row, dict)
            ]
            beside = sorted(each.name for each in islice(place.glob(f"{path.stem}.*"), 20) if each != path)
            yield {
                "name": short(path.stem),
                "steps": short(raw.get("steps", "")),
                "device": short(raw.get("device", "")),
                "ops": ops,
                "files": [printable(str(place / each)) for each in beside],
            }


def _cell(value: Any) -> Any:
    return value if type(value) in (int, float) and abs(value) < 1e15 else short(value)


def in_text(content: Mapping[str, Any]) -> str:
    """The content as JSON that may stand inside a script element: `<` cannot end it, nor can a line end in a string."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text
