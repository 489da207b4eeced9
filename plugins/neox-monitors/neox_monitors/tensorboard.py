"""The `tensorboard` monitor: event files. The only importer of TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from neox_core.contracts.host import RunInfo
from neox_monitors.events import TRAIN, events
from neox_monitors.place import folder_of, written_to
from neox_monitors.settings import TensorBoardSettings

DATA_HASH = f"{TRAIN}/data_hash"
"""48 bits, of which a scalar of TensorBoard, in fp32, keeps 24: it is written as text."""


class TensorBoard:
    """Writes to `tensorboard-dir`, else to <output_path>/<job_name>; the horizontal axis counts samples.

    A resumed run tells TensorBoard to forget what was written after the step it resumes from.
    """

    def __init__(self, run: RunInfo, settings: TensorBoardSettings) -> None:
        self._samples_per_step = run.samples_per_step
        folder = settings.tensorboard_dir or str(folder_of(run, settings.tensorboard))
        forget = run.first_step * run.samples_per_step + 1 if run.first_step else None
        with written_to(Path(folder), "set tensorboard-dir, or tensorboard.output_path, to another folder"):
            self._writer = SummaryWriter(folder, purge_step=forget)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        sample = step * self._samples_per_step
        for name, value in events(values).items():
            if name == DATA_HASH:
                self._writer.add_text(name, str(int(value)), sample)
            else:
                self._writer.add_scalar(name, value, sample)
        self._writer.flush()

    def say(self, message: str) -> None:
        """Messages are for people."""

    def close(self) -> None:
        self._writer.close()
