"""Offers DeepSpeed as the engine of a run."""

from neox_core.api import Component, ConfigSection, hookimpl
from neox_deepspeed.config.sections.aio import AioSection
from neox_deepspeed.config.sections.communication import CommunicationSection
from neox_deepspeed.config.sections.engine import EngineSection
from neox_deepspeed.config.sections.precision import PrecisionSection
from neox_deepspeed.config.sections.profiling import ProfilingSection
from neox_deepspeed.config.sections.zero import ZeroSection


def _section(name: str, settings: type) -> ConfigSection:
    return ConfigSection(name, settings, (settings.__doc__ or "").partition("\n")[0])


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
                _section("precision", PrecisionSection),
                _section("zero", ZeroSection),
                _section("aio", AioSection),
                _section("communication", CommunicationSection),
                _section("engine", EngineSection),
                _section("profiling", ProfilingSection),
            ),
        )
    ]
