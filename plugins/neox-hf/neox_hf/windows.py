"""Which layers have a window: lists of layer types and widths of transformers, and our keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neox_core.errors import ConfigError

if TYPE_CHECKING:
    from neox_gpt.api import GPTPlan

FULL, SLIDING = "full_attention", "sliding_attention"


def window_keys(width: int | None, layer_types: Sequence[str]) -> dict[str, Any]:
    """width: tokens that one sees, itself among them. Raises ConfigError for layers of another kind."""
    other = [each for each in layer_types if each not in (FULL, SLIDING)]
    if other:
        raise ConfigError(f"config.json: layer_types has {other[0]!r}, which this version of neox does not have")
    if SLIDING not in layer_types:
        return {}
    if not width or width < 2:
        raise ConfigError(f"config.json: sliding_window is {width!r}, and layers have a window of 2 tokens or more")
    keys: dict[str, Any] = {"sliding-window-width": width - 1}
    if FULL in layer_types:
        keys["attention-config"] = ["sliding" if each == SLIDING else "global" for each in layer_types]
    return keys


def layer_types(model: GPTPlan) -> list[str]:
    """The type of each layer."""
    return [FULL if width is None else SLIDING for width in model.windows or (None,) * model.num_layers]


def width_of(model: GPTPlan) -> int | None:
    """Tokens that one sees in layers with a window, itself among them."""
    return next((width + 1 for width in model.windows or () if width is not None), None)


def read_width(config: Mapping[str, Any], otherwise: int | None) -> int | None:
    """`sliding_window` of a config.json. Raises ConfigError where it is not a number of tokens."""
    width = config.get("sliding_window", otherwise)
    return None if width is None else whole("sliding_window", width)


def whole(key: str, value: Any) -> int:
    """A value of config.json that has to be a whole number. Raises ConfigError for any other."""
    if type(value) is not int:
        raise ConfigError(f"config.json: {key} is {value!r}, and not a whole number")
    return value


def read_types(config: Mapping[str, Any], otherwise: Sequence[str]) -> Sequence[str]:
    """The layer types of a config.json, those of `otherwise` where it names none."""
    written = config.get("layer_types")
    if written is None:
        return otherwise
    if not isinstance(written, list) or len(written) != len(otherwise):
        raise ConfigError(f"config.json: layer_types is not a list of {len(otherwise)} names")
    return written
