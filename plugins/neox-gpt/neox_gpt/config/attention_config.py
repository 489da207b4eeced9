"""The layout of each layer, from `sparsity` or from GPT-NeoX's `attention-config`."""

from collections.abc import Mapping, Sequence
from typing import Any

BLOCKS_MODE, DEFAULT_MODE = "fixed", "variable"
"""The layout of a block without `mode`, as in DeepSpeed's documents, and without a block, as GPT-NeoX builds it."""

SPARSE = "sparse"
"""In `attention-config`: the layout that `sparse_attention.mode` names."""

_DENSE = ("global", "flash")
_OTHER_NAMES = {"sparse_fixed": "fixed", "sparse_variable": "variable"}


def pattern(instance: Any, field: Any, value: Sequence[Any] | None) -> None:
    """Check the form of `attention-config`; a rule checks that it fits the number of layers."""
    if value is not None:
        _items(value)


def layer_layouts(
    num_layers: int, sparsity: str, mode: str, attention_config: Sequence[Any] | None
) -> tuple[str | None, ...]:
    """The layout of each layer; None: the layer sees everything before it.

    Raises ValueError when attention_config does not make num_layers layers.
    """
    if attention_config is None:
        period = {"none": (None, None), "all": (mode, mode), "interspersed": (None, mode)}[sparsity]
        return (period * (num_layers // 2 + 1))[:num_layers]
    check_length(num_layers, attention_config)
    names = [name for names, times in _items(attention_config) for name in names * _times(times, names, num_layers)]
    return tuple(_layout(each, mode) for each in names)


def layouts_used(sparsity: str, mode: str, attention_config: Sequence[Any] | None) -> tuple[str, ...]:
    """The layouts in use, each once, in the order of the first layers that have them."""
    if attention_config is None:
        return () if sparsity == "none" else (mode,)
    names = (_layout(name, mode) for names, _ in _items(attention_config) for name in names)
    return tuple(name for name in dict.fromkeys(names) if name is not None)


def check_length(num_layers: int, attention_config: Sequence[Any]) -> None:
    """Raises ValueError when attention_config does not make num_layers layers."""
    total = 0
    for names, times in _items(attention_config):
        if times is None and num_layers % len(names):
            raise ValueError(f"repeats {len(names)} names, which does not make num-layers {num_layers}")
        total += len(names) * _times(times, names, num_layers)
    if total != num_layers:
        raise ValueError(f"names the attention of {total} layers, and num-layers is {num_layers}")


def mode_of(block: Mapping[str, Any]) -> Any:
    """The value of `mode` in the block, unchecked."""
    mode = block.get("mode")
    default = BLOCKS_MODE if block else DEFAULT_MODE
    return default if mode is None else mode


def _layout(name: str, mode: str) -> str | None:
    if name in _DENSE:
        return None
    return mode if name == SPARSE else _OTHER_NAMES.get(name, name)


def _times(times: int | None, names: Sequence[str], num_layers: int) -> int:
    return num_layers // len(names) if times is None else times


def _items(value: Sequence[Any]) -> list[tuple[tuple[str, ...], int | None]]:
    """(names, how often); None: repeated through all layers."""
    if value and all(isinstance(each, str) for each in value):
        return [(tuple(value), 1)]
    form = "must be a list of names, or of [[names], count] with a whole number or all as count"
    items: list[tuple[tuple[str, ...], int | None]] = []
    for each in value:
        if not isinstance(each, Sequence) or isinstance(each, str) or len(each) != 2:
            raise ValueError(form)
        names, times = each
        named = isinstance(names, Sequence) and not isinstance(names, str) and len(names) > 0
        counted = times == "all" or (isinstance(times, int) and not isinstance(times, bool) and times > 0)
        if not (named and counted and all(isinstance(name, str) for name in names)):
            raise ValueError(form)
        items.append((tuple(names), None if times == "all" else times))
    if not items:
        raise ValueError(form)
    return items
