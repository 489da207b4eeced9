"""Offers an engine in torch alone."""

from neox_core.api import Component, ConfigSection, hookimpl


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
