"""What other plugins import of this one."""

from neox_causal_lm.objective import CausalLM, NextToken
from neox_causal_lm.order import SampleOrder, build_order, split_documents

__all__ = ["CausalLM", "NextToken", "SampleOrder", "build_order", "split_documents"]
