"""What authors of checkpoint formats test with: the check of the kind."""

from neox_checkpoints.testing.formats import check_checkpoint_format

__all__ = ["check_checkpoint_format"]
