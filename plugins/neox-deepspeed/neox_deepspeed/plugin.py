"""Offers DeepSpeed as the engine of a run."""

from typing import Any

from neox_core.api import Component, ConfigSection, Problem, hookimpl

SECTIONS = "neox_deepspeed.config.sections"


@hookimpl
def neox_engines() -> list[Component]:
    return [
        Component(
            name="deepspeed",
            target="neox_deepspeed.maker:DeepSpeed",
            planner="neox_deepspeed.config.planner:PLANNER",
            summary="DeepSpeed: ZeRO, offload, pipelines.",
            needs=("deepspeed",),
            sections=(
                ConfigSection("precision", "neox_plain.config.sections.precision:PrecisionSection"),
                ConfigSection("gradients", "neox_plain.config.sections.gradients:GradientsSection"),
                ConfigSection("checkpoint block", "neox_plain.config.sections.checkpoint:CheckpointBlockSection"),
                ConfigSection("zero", f"{SECTIONS}.zero:ZeroSection"),
                ConfigSection("aio", f"{SECTIONS}.aio:AioSection"),
                ConfigSection("communication", f"{SECTIONS}.communication:CommunicationSection"),
                ConfigSection("engine", f"{SECTIONS}.engine:EngineSection"),
                ConfigSection("profiling", f"{SECTIONS}.profiling:ProfilingSection"),
            ),
        )
    ]


@hookimpl
def neox_check_plan(config: Any, plan: Any) -> list[Problem]:
    from neox_plain.api import unmatched_factors  # listing plugins needs none of it

    return list(unmatched_factors(config, plan))
