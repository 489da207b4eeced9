"""When ranks own whole parameters."""

from neox_core.config.schema.structure import Config
from neox_deepspeed.config.sections.zero import ZeroSection


def owns_parameters(config: Config) -> bool:
    """Whether ranks own whole parameters at ZeRO 1. DeepSpeed then shards nothing.

    They do for an optimizer that needs them, and where the config asks for broadcasts: each owner sends its own.
    """
    zero, (optimizer,) = config.section(ZeroSection).zero_optimization, config.components("optimizer")
    return zero.stage == 1 and (optimizer.entry.component.whole_parameters or not zero.allgather_partitions)
