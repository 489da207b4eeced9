"""When ranks own whole parameters."""

from neox_core.config.schema.structure import Config
from neox_deepspeed.config.sections.zero import ZeroSection


def owns_parameters(config: Config) -> bool:
    """Whether ranks own whole parameters: at ZeRO 1 for an optimizer that needs them. DeepSpeed then shards nothing."""
    (optimizer,) = config.components("optimizer")
    return optimizer.entry.component.whole_parameters and config.section(ZeroSection).zero_optimization.stage == 1
