"""The `comet` monitor: an experiment at Comet. The only importer of comet_ml."""

from __future__ import annotations

import os
from collections.abc import Mapping

from neox_core.contracts.host import RunInfo
from neox_core.errors import PluginError
from neox_monitors.events import events
from neox_monitors.settings import CometSettings

# it would patch torch and log values that neox does not report
os.environ.setdefault("COMET_DISABLE_AUTO_LOGGING", "1")

import comet_ml


class Comet:
    """One experiment, begun here and ended in `close`. Its step counts samples; the key is in the environment.

    Of the values of one name, those less than `samples_log_interval` samples after the last one sent are left out.
    """

    def __init__(self, run: RunInfo, settings: CometSettings) -> None:
        block = settings.comet
        self._samples_per_step = run.samples_per_step
        self._interval = block.samples_log_interval
        self._sent: dict[str, int] = {}  # sample of the last value, by name
        try:
            self._experiment = comet_ml.start(
                workspace=block.workspace,
                project=block.project,
                experiment_key=block.experiment_key,
                mode=block.mode,
                online=block.online,
            )
        except ValueError as error:
            hint = "set COMET_API_KEY in the environment, or comet: {online: false}"
            raise PluginError(f"Comet: {error}", hint=hint) from error
        if block.experiment_name is not None:
            self._experiment.set_name(block.experiment_name)
        if block.tags:
            self._experiment.add_tags(list(block.tags))
        if block.others:
            self._experiment.log_others(dict(block.others))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        sample = step * self._samples_per_step
        for name, value in events(values).items():
            last = self._sent.get(name)
            if last is None or sample - last >= self._interval:
                self._sent[name] = sample
                self._experiment.log_metric(name, value, step=sample)

    def say(self, message: str) -> None:
        """Messages are for people."""

    def close(self) -> None:
        self._experiment.end()
