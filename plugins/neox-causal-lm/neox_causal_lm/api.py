"""What other plugins import of this one."""

from neox_causal_lm.objective import CausalLM
from neox_causal_lm.order import SampleOrder, build_order

__all__ = ["CausalLM", "SampleOrder", "build_order"]
