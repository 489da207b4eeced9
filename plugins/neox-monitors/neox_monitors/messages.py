"""messages.jsonl: where a run was started, and what it said to people, one object a line."""

from __future__ import annotations

import json
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_monitors.place import require_file, written_to

if TYPE_CHECKING:
    from neox_core.contracts.host import RunInfo

NAME = "messages.jsonl"
LIBRARIES = ("neox-core", "torch", "deepspeed", "triton", "numpy")


class Messages:
    """Appends `{"step", "time", "start": {...}}`, and `{"step", "time", "said": text}`; a resumed run continues it.

    A run that starts at step 0 begins a new file; the old one is kept beside it. Raises ConfigError for a file that
    cannot be written. way_out: the hint of it.
    """

    def __init__(self, run: RunInfo, way_out: str) -> None:
        self._run = run
        path, before = run.run_dir / NAME, run.run_dir / f"{NAME}.1"
        for each in (path, before):
            require_file(each, way_out)
        with written_to(path, way_out):
            if run.first_step == 0 and path.exists():
                path.replace(before)
            self._file = path.open("a", encoding="utf-8")
            self._add(run.first_step, start=_environment(run))

    def say(self, message: str) -> None:
        self._add(self._run.progress.step, said=message)

    def close(self) -> None:
        self._file.close()

    def _add(self, step: int, **what: Any) -> None:
        self._file.write(json.dumps({"step": step, "time": round(time.time(), 3), **what}) + "\n")
        self._file.flush()


def _environment(run: RunInfo) -> dict[str, Any]:
    """What a reader of the run asks for: no name of a user, no variable of the environment."""
    found: dict[str, Any] = {
        "host": platform.node(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "processor": _device(run.device),
        "ranks": run.num_ranks,
        "parameters": run.num_parameters,
    }
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _device(kind: str) -> str:
    """What the ranks compute on."""
    if kind == "cuda":
        import torch

        return str(torch.cuda.get_device_name())
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not on Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
