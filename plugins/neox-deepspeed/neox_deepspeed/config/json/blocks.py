"""The blocks of a config that the engine reads itself, with nothing of the config around them."""

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen
from neox_plain.api import PrecisionSection

from neox_core.config.schema.structure import Config
from neox_deepspeed.config.sections.aio import AioBlock, AioSection
from neox_deepspeed.config.sections.communication import CommunicationSection
from neox_deepspeed.config.sections.engine import EngineSection
from neox_deepspeed.config.sections.profiling import ProfilingSection
from neox_deepspeed.config.sections.zero import ZeroBlock, ZeroSection


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
