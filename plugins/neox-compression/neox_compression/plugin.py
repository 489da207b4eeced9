"""Offers the techniques of DeepSpeed's block `compression_training`."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Component, Problem, hookimpl


@hookimpl
def neox_model_changes() -> list[Component]:
    return [
        Component(
            name="compression",
            target="neox_compression.change:Compression",
            settings="neox_compression.settings:CompressionSettings",
            planner="neox_compression.plan:added_size",
            summary="Quantization and pruning while a model trains (arXiv:2206.01859).",
        )
    ]


@hookimpl
def neox_objectives() -> list[Component]:
    return [
        Component(
            name="distillation",
            target="neox_compression.teacher.distillation:Distillation",
            settings="neox_compression.config.sections.distillation:DistillationSettings",
            summary="predict the next token, and as a teacher does (arXiv:1503.02531).",
        )
    ]


@hookimpl
def neox_check_config(config: Any) -> Iterator[Problem]:
    """Checks of several keys together. They are imported here, because listing plugins needs no decoder's plan."""
    for chosen in config.components("model change"):
        if chosen.entry.plugin.id == "neox-compression":
            from neox_compression.config.check.problems import problems

            yield from problems(config, chosen.settings)
    for chosen in config.components("objective"):
        if chosen.entry.plugin.id == "neox-compression":
            from neox_compression.config.check.teacher import distillation_problems

            yield from distillation_problems(config, chosen.settings)
