"""The blocks of a config that the engine reads itself, with nothing of the config around them."""

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from neox_core.config.schema.sections.aio import AioBlock, AioSection
from neox_core.config.schema.sections.communication import CommunicationSection
from neox_core.config.schema.sections.engine import EngineSection
from neox_core.config.schema.sections.precision import PrecisionSection
from neox_core.config.schema.sections.profiling import ProfilingSection
from neox_core.config.schema.sections.zero import ZeroBlock, ZeroSection
from neox_core.config.schema.structure import Config


@frozen
class EngineBlocks:
    """A block more for the engine is a field here, and a function of it in `engine_json`."""

    zero: ZeroBlock = ZeroBlock()
    precision: PrecisionSection = PrecisionSection()
    communication: CommunicationSection = CommunicationSection()
    aio: AioBlock = AioBlock()
    profiling: ProfilingSection = ProfilingSection()
    extra: Mapping[str, Any] = field(factory=dict)


def engine_blocks(config: Config) -> EngineBlocks:
    """The blocks of a valid config."""
    return EngineBlocks(
        zero=config.section(ZeroSection).zero_optimization,
        precision=config.section(PrecisionSection),
        communication=config.section(CommunicationSection),
        aio=config.section(AioSection).aio,
        profiling=config.section(ProfilingSection),
        extra=config.section(EngineSection).deepspeed_extra_args,
    )
