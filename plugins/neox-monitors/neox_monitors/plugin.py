"""What neox-monitors offers."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Component, Problem, hookimpl


@hookimpl
def neox_monitors() -> list[Component]:
    return [
        Component(
            "comet",
            "neox_monitors.comet:Comet",
            "neox_monitors.settings:CometSettings",
            summary="An experiment at Comet (comet.com)",
            needs=("comet_ml",),
        ),
        Component(
            "console",
            "neox_monitors.console:Console",
            summary="Progress bar or plain lines, and the loss curve at the end",
            needs=("rich",),
        ),
        Component(
            "csv_monitor",
            "neox_monitors.csvfiles:CsvFiles",
            "neox_monitors.settings:CsvSettings",
            summary="A CSV file for each value, as DeepSpeed writes them",
        ),
        Component(
            "jsonl", "neox_monitors.jsonl:JsonLines", summary="metrics.jsonl in the folder of the run (jsonlines.org)"
        ),
        Component(
            "tensorboard",
            "neox_monitors.tensorboard:TensorBoard",
            "neox_monitors.settings:TensorBoardSettings",
            summary="Event files for TensorBoard",
            needs=("tensorboard",),
        ),
        Component(
            "wandb",
            "neox_monitors.weightsandbiases:WeightsAndBiases",
            "neox_monitors.settings:WandbSettings",
            summary="A run at Weights & Biases (wandb.ai)",
            needs=("wandb",),
        ),
    ]


@hookimpl
def neox_check_config(config: Any) -> list[Problem]:
    return list(_one_folder_for_tensorboard(config))


def _one_folder_for_tensorboard(config: Any) -> Iterator[Problem]:
    """tensorboard-dir is the folder itself; output_path and job_name make one."""
    if not config.is_set("tensorboard_dir"):
        return
    for key in ("tensorboard.output_path", "tensorboard.job_name"):
        if config.is_set(key):
            yield Problem("does nothing with tensorboard-dir", key, "keep one of the two")
