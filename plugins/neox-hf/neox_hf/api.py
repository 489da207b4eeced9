"""What other packages may import of this one: the contracts of its kinds."""

from neox_hf.contracts import CheckpointFormat, ModelFamily, WeightRule

__all__ = ["CheckpointFormat", "ModelFamily", "WeightRule"]
