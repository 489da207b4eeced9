"""What other plugins may import: the planner of a store, which keeps checkpoints in it."""

from neox_fsspec.checkpoints import Checkpoints

__all__ = ["Checkpoints"]
