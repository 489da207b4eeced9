"""What other packages may import of this one: the contracts of its kinds, and what families are written with."""

from neox_hf.common import demand, needed, plain_layers, settings
from neox_hf.contracts import ModelFamily, WeightRule
from neox_hf.llama import interleave
from neox_hf.understood import understood

__all__ = [
    "ModelFamily",
    "WeightRule",
    "demand",
    "interleave",
    "needed",
    "plain_layers",
    "settings",
    "understood",
]
