"""Offers the techniques of DeepSpeed's block `compression_training`."""

from collections.abc import Iterator
from typing import Any

from neox_compression.settings import CompressionSettings
from neox_core.api import Component, Problem, hookimpl


@hookimpl
def neox_model_changes() -> list[Component]:
    return [
        Component(
            name="compression",
            target="neox_compression.change:Compression",
            settings=CompressionSettings,
            planner="neox_compression.plan:added_size",
            summary="Quantization and pruning while a model trains (arXiv:2206.01859).",
        )
    ]


@hookimpl
def neox_check_config(config: Any) -> Iterator[Problem]:
    for chosen in config.components("model change"):
        if isinstance(chosen.settings, CompressionSettings):
            from neox_compression.check_config import (
                problems,  # imports the plan of a decoder, which a list of plugins needs not
            )

            yield from problems(config, chosen.settings)
