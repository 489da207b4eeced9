"""What other plugins may import of this one: the contracts of a checkpoint format, and what writes a checkpoint, with
torch, when it is asked for.
"""

from typing import TYPE_CHECKING, Any

from neox_checkpoints.contracts import CheckpointFormat, ForeignCheckpoint, ImportedProgress, Stored

if TYPE_CHECKING:
    from neox_checkpoints.write import write_checkpoint


def __getattr__(name: str) -> Any:
    if name != "write_checkpoint":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from neox_checkpoints.write import write_checkpoint

    return write_checkpoint


__all__ = ["CheckpointFormat", "ForeignCheckpoint", "ImportedProgress", "Stored", "write_checkpoint"]
