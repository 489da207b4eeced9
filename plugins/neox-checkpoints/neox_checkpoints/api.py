"""What other plugins may import of this one."""

from neox_checkpoints.contracts import CheckpointFormat, ForeignCheckpoint, ImportedProgress, Stored

__all__ = ["CheckpointFormat", "ForeignCheckpoint", "ImportedProgress", "Stored"]
