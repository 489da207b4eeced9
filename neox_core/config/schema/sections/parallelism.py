"""How a model is split over ranks."""

import re
from typing import Any

from attrs import frozen

from neox_core.config.schema.checks import above, at_least
from neox_core.config.schema.convert import shown
from neox_core.config.schema.setting import setting


def _partition(instance: Any, field: Any, value: str) -> None:
    """`parameters`, `uniform`, `time`, `time+head`, or `type:` and a regular expression."""
    kind, _, pattern = value.partition(":")
    if value not in ("parameters", "uniform", "time", "time+head") and (kind != "type" or not pattern):
        raise ValueError(f"must be parameters, uniform, time, time+head or type:<regex>, not {shown(value)}")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{shown(pattern)} is not a regular expression: {error}") from error


def _split(default: Any, *, help: str, **more: Any) -> Any:
    """A setting of which no number of a run depends."""
    return setting(default, help=help, changes="speed", **more)


@frozen
class ParallelismSection:
    """How a model is split over ranks; the remaining factor is data parallelism."""

    pipe_parallel_size: int = _split(
        0, help="Pipeline stages; 0 and 1: no pipeline.", check=at_least(0), unit="ranks", origin="megatron"
    )
    model_parallel_size: int = _split(
        1, help="Ranks that share each layer (tensor parallelism).", check=above(0), unit="ranks", origin="megatron"
    )
    pipe_partition_method: str = _split(
        "type:transformer",
        help="What is divided equally over pipeline stages: parameters, layers (uniform), the layers of type:<regex>, "
        "or what layers and loss take forward and backward, measured at the start (time; with time+head they share the "
        "output layer).",
        check=_partition,
        origin="gpt-neox",
    )
    sequence_parallel: bool = _split(
        False,
        help="Split norms and dropout by positions too, over the ranks of model-parallel-size.",
        origin="gpt-neox",
    )

    @property
    def stages(self) -> int:
        """Number of pipeline stages; 1 without a pipeline."""
        return max(1, self.pipe_parallel_size)

    @property
    def ranks_of_a_copy(self) -> int:
        """Number of ranks that together hold one copy of the model."""
        return self.model_parallel_size * self.stages
