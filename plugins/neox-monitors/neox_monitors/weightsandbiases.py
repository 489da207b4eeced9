"""The `wandb` monitor: Weights & Biases. The only importer of wandb."""

from __future__ import annotations

from collections.abc import Mapping

import wandb

from neox_core.contracts.host import RunInfo
from neox_core.errors import PluginError
from neox_monitors.events import events
from neox_monitors.settings import WandbSettings


class WeightsAndBiases:
    """One run of wandb, begun here and finished in `close`. Its step counts samples; the key is in the environment."""

    def __init__(self, run: RunInfo, settings: WandbSettings) -> None:
        self._samples_per_step = run.samples_per_step
        block = settings.wandb
        try:
            self._run = wandb.init(
                project=block.project, group=block.group, entity=block.team, dir=str(run.run_dir.resolve())
            )
        except wandb.errors.Error as error:
            hint = "set WANDB_API_KEY in the environment, or WANDB_MODE=offline, or wandb: {enabled: false}"
            raise PluginError(f"Weights & Biases: {error}", hint=hint) from error

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(events(values), step=step * self._samples_per_step)

    def say(self, message: str) -> None:
        """Messages are for people."""

    def close(self) -> None:
        self._run.finish()
