"""What other packages may import of this one: the contracts of its kinds."""

from neox_hf.contracts import ModelFamily, WeightRule

__all__ = ["ModelFamily", "WeightRule"]
