"""The parameters of the positions, told without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neox_gpt.api import PositionShape

    from neox_positions.settings import RelativeSettings

Shapes = dict[str, tuple[int, ...]]


def nothing(shape: PositionShape, settings: Any) -> Shapes:
    return {}


def learned(shape: PositionShape, settings: None) -> Shapes:
    return {"weight": (shape.max_positions, shape.hidden_size)}


def relative(shape: PositionShape, settings: RelativeSettings) -> Shapes:
    return {"weight": (settings.rpe_num_buckets, shape.num_heads)}
