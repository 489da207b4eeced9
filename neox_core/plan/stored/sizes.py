"""The sizes that run.json of a checkpoint gives its model, against the tensors that the manifest lists."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_core.errors import CheckpointError
from neox_core.plan.stored.saved import DAMAGED, MANIFEST, RUN, read_sealed

if TYPE_CHECKING:
    from neox_core.plan.runfile import ModelPlan


def check_sizes(checkpoint: Path, model: ModelPlan) -> None:
    """Raises CheckpointError for a size that no model with the weights of the checkpoint has.

    It is asked before anything is made of the sizes, which take memory and time.
    """
    weights = _weights(read_sealed(checkpoint / MANIFEST)[0].get("pieces"))
    longest = max((length for shape in weights.values() for length in shape), default=0)
    for name, value, most in model.bounds(longest, len(weights)):
        if not 1 <= value <= most:
            raise CheckpointError(
                f"{checkpoint / RUN}: {name} is {value:,}, and the {len(weights):,} weights of the checkpoint allow"
                f" 1 to {most:,}",
                hint=DAMAGED,
            )


def _weights(pieces: Any) -> dict[str, list[int]]:
    """Shape by name of the weights in a manifest; empty for an invalid list, which is refused later."""
    found: dict[str, list[int]] = {}
    for piece in pieces if isinstance(pieces, list) else ():
        if isinstance(piece, dict) and piece.get("kind") == "weight" and isinstance(piece.get("shape"), list):
            found[str(piece.get("name"))] = [each for each in piece["shape"] if isinstance(each, int)]
    return found
