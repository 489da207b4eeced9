"""The callback: starts a profiler before the first step to profile, and writes what it saw after the last."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from neox_core.files import replacing
from neox_core.terminal import cut, echo, one_line
from neox_profile.recorded import Nsys, Recorder, Torch, most_expensive

if TYPE_CHECKING:
    from neox_core.contracts.host import RunInfo
    from neox_core.parallel.context import BuildContext
    from neox_profile.settings import ProfileBlock, ProfileSettings

FOLDER = "profiles"


class Unprofiled:
    """On a rank that is not profiled: handles no event but the start, so that a step costs nothing."""

    def start(self, step: int) -> None:
        """Nothing."""


def profile_steps(run: RunInfo, context: BuildContext, settings: ProfileSettings) -> Profiler | Unprofiled:
    """The callback of this rank."""
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    block = settings.profile
    if block.first is None or rank not in block.ranks:
        return Unprofiled()
    return Profiler(run.run_dir / FOLDER, rank, context.device, block)


profile_steps.where = "every rank"  # type: ignore[attr-defined] # what the contract asks of a target


class Profiler:
    """Profiles steps `first` to `last`, or those of them that the process makes: it may resume in between.

    Makes no collective call. It waits for the device once, after the last step that is profiled.
    """

    def __init__(self, folder: Path, rank: int, device: torch.device, block: ProfileBlock) -> None:
        assert block.first is not None  # noqa: S101
        self.folder, self.rank, self.device = folder, rank, device
        self.first, self.last = block.first, block.first if block.last is None else block.last
        self.nsys = block.nsys and device.type == "cuda"
        self.recorder: Recorder | None = None
        self.began = 0

    def start(self, step: int) -> None:
        if self.first <= step + 1 <= self.last:
            self._begin(step + 1)

    def step(self, step: int) -> None:
        if self.recorder is not None and step >= self.last:
            self._finish(step)
        elif self.recorder is not None:
            self.recorder.next(step + 1)
        elif step + 1 == self.first and not self.began:
            self._begin(step + 1)

    def end(self, step: int) -> None:
        if self.recorder is not None:  # the run ended before the last step that was to be profiled
            self._finish(step)

    def _begin(self, step: int) -> None:
        self.began = step
        self.recorder = Nsys() if self.nsys else Torch(self.device)
        self.recorder.begin(step)

    def _finish(self, step: int) -> None:
        recorder, self.recorder = self.recorder, None
        assert recorder is not None  # noqa: S101
        recorder.finish()
        steps = f"{self.began} to {step}"
        try:
            said = self._write(recorder, steps)
        except OSError as error:  # a run does not end because its profile cannot be written
            said = f"cannot be written to {self.folder}: {error.strerror or error}"
        echo(f"profile of rank {self.rank}, steps {steps}: {said}")

    def _write(self, recorder: Recorder, steps: str) -> str:
        if isinstance(recorder, Nsys):
            return "marked for nsys"
        assert isinstance(recorder, Torch)  # noqa: S101
        self.folder.mkdir(parents=True, exist_ok=True)
        trace = self.folder / f"rank{self.rank}.trace.json.gz"
        with replacing(trace, trace.with_name(f".{os.getpid()}.{trace.name}")) as new:
            recorder.write_trace(new)
        if self.device.type == "cuda":
            memory = self.folder / f"rank{self.rank}.memory.pickle"
            with replacing(memory) as new:
                recorder.write_memory(new)
        rows = most_expensive(recorder)
        told = {"steps": steps, "device": self.device.type, "ops": rows}
        with replacing(self.folder / f"rank{self.rank}.json") as new:
            new.write_text(json.dumps(told, indent=1), encoding="utf-8")
        return "\n".join((str(trace), *in_lines(rows)))


def in_lines(rows: list[dict[str, Any]]) -> list[str]:
    """The table for a log."""
    lines = [f"{'ms on the CPU':>14}  {'ms on the device':>16}  {'calls':>7}  operation"]
    for row in rows:
        numbers = f"{row['cpu_ms']:>14.3f}  {row['device_ms']:>16.3f}  {row['calls']:>7,}"
        lines.append(f"{numbers}  {one_line(cut(row['name'], 100))}")
    return lines
