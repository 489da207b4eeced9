"""Offers an engine in torch alone."""

from typing import Any

from neox_core.api import Component, ConfigSection, Problem, hookimpl


@hookimpl
def neox_engines() -> list[Component]:
    return [
        Component(
            name="plain",
            target="neox_plain.maker:Plain",
            planner="neox_plain.planner:PLANNER",
            summary="torch alone: fp32 or autocast, one rank or data-parallel ranks.",
            sections=(
                ConfigSection(
                    "precision",
                    "neox_plain.config.sections.precision:PrecisionSection",
                    "Precision of weights and matmuls.",
                ),
                ConfigSection(
                    "gradients",
                    "neox_plain.config.sections.gradients:GradientsSection",
                    "Factors of gradients.",
                ),
                ConfigSection(
                    "checkpoint block",
                    "neox_plain.config.sections.checkpoint:CheckpointBlockSection",
                    "How checkpoints are written.",
                ),
            ),
        )
    ]


@hookimpl
def neox_check_plan(config: Any, plan: Any) -> list[Problem]:
    from neox_plain.config.gradient_rules import unmatched_factors  # listing plugins needs none of it

    return list(unmatched_factors(config, plan))
