"""The parameters of the norms, told without torch."""

from typing import Any

Shapes = dict[str, tuple[int, ...]]


def layernorm(hidden_size: int, settings: Any) -> Shapes:
    """The parameters of LayerNorm."""
    return {"weight": (hidden_size,), "bias": (hidden_size,)}


def rmsnorm(hidden_size: int, settings: Any) -> Shapes:
    """The parameters of RMSNorm."""
    return {"weight": (hidden_size,)}


def scalenorm(hidden_size: int, settings: Any) -> Shapes:
    """The parameters of ScaleNorm."""
    return {"weight": (1,)}
