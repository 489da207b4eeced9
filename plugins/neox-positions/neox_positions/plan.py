"""The parameters of the positions, told without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neox_gpt.api import PositionSize

if TYPE_CHECKING:
    from neox_gpt.api import PositionShape

    from neox_positions.settings import RelativeSettings

Shapes = dict[str, tuple[int, ...]]


def nothing(shape: PositionShape, settings: Any) -> Shapes:
    """Positions without parameters."""
    return {}


def learned(shape: PositionShape, settings: None) -> Shapes:
    """The table of learned positions."""
    return {"weight": (shape.max_positions, shape.hidden_size)}


def in_scores(shape: PositionShape, settings: Any) -> PositionSize:
    """Positions that act in attention scores and have no parameters."""
    return PositionSize({}, embeds=False)


def relative(shape: PositionShape, settings: RelativeSettings) -> PositionSize:
    """The table of T5's relative positions."""
    return PositionSize({"weight": (settings.rpe_num_buckets, shape.num_heads)}, embeds=False)
