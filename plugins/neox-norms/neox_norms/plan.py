"""The parameters of the norms, told without torch."""

from typing import Any

Shapes = dict[str, tuple[int, ...]]


def layernorm(hidden_size: int, settings: Any) -> Shapes:
    return {"weight": (hidden_size,), "bias": (hidden_size,)}


def rmsnorm(hidden_size: int, settings: Any) -> Shapes:
    return {"weight": (hidden_size,)}


def scalenorm(hidden_size: int, settings: Any) -> Shapes:
    return {"weight": (1,)}
