"""The mixer and the layout of each layer, from `sparsity` or from GPT-NeoX's `attention-config`."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from neox_gpt.config.per_layer import check_form, check_length, items, names_of_layers

BLOCKS_MODE, DEFAULT_MODE = "fixed", "variable"
"""The layout of a block without `mode`, as in DeepSpeed's documents, and without a block, as GPT-NeoX builds it."""

SPARSE = "sparse"
"""In `attention-config`: the layout that `sparse_attention.mode` names."""

SOFTMAX = "global"
"""Softmax attention, which sees everything before a token, or what a layout says."""

SLIDING, NOPE = "sliding", "nope"
"""Softmax attention in a window, and without positions."""

_DENSE = (SOFTMAX, "flash", SLIDING, NOPE)
_OTHER_NAMES = {"sparse_fixed": "fixed", "sparse_variable": "variable"}


def pattern(instance: Any, field: Any, value: Sequence[Any] | None) -> None:
    """Check the form of `attention-config`; a rule checks that it fits the number of layers."""
    if value is not None:
        check_form(value)


def layer_layouts(
    num_layers: int,
    sparsity: str,
    mode: str,
    attention_config: Sequence[Any] | None,
    others: Collection[str] = (),
) -> tuple[str | None, ...]:
    """The layout of each layer; None: the layer sees everything before it. others: the names of other mixers.

    Raises ValueError when attention_config does not make num_layers layers.
    """
    if attention_config is None:
        period = {"none": (None, None), "all": (mode, mode), "interspersed": (None, mode)}[sparsity]
        return (period * (num_layers // 2 + 1))[:num_layers]
    check_length(num_layers, attention_config, "attention")
    return tuple(_layout(each, mode, others) for each in names_of_layers(num_layers, attention_config))


def layouts_used(
    sparsity: str, mode: str, attention_config: Sequence[Any] | None, others: Collection[str] = ()
) -> tuple[str, ...]:
    """The layouts in use, each once, in the order of the first layers that have them."""
    if attention_config is None:
        return () if sparsity == "none" else (mode,)
    names = (_layout(name, mode, others) for name in names_in(attention_config))
    return tuple(name for name in dict.fromkeys(names) if name is not None)


def mode_of(block: Mapping[str, Any]) -> Any:
    """The value of `mode` in the block, unchecked."""
    mode = block.get("mode")
    default = BLOCKS_MODE if block else DEFAULT_MODE
    return default if mode is None else mode


def names_in(attention_config: Sequence[Any]) -> tuple[str, ...]:
    """The names that are written, each once, in the order of the first layers that have them."""
    return tuple(dict.fromkeys(name for names, _ in items(attention_config) for name in names))


def is_layout_or_dense(name: str) -> bool:
    """Whether a name is one of GPT-NeoX's for softmax attention, whatever is installed."""
    return name in (*_DENSE, SPARSE, *_OTHER_NAMES)


def mixers_used(attention_config: Sequence[Any] | None, others: Collection[str]) -> tuple[str, ...]:
    """The mixers in use, each once, in the order of the first layers that have them. others: as of `layer_layouts`."""
    names = (SOFTMAX,) if attention_config is None else names_in(attention_config)
    return tuple(dict.fromkeys(_mixer(name, others) for name in names))


def mixer_of_layer(
    num_layers: int, attention_config: Sequence[Any] | None, others: Collection[str]
) -> tuple[int, ...] | None:
    """For each layer its place among `mixers_used`; None where all layers have the first."""
    if attention_config is None:
        return None
    place = {name: index for index, name in enumerate(mixers_used(attention_config, others))}
    found = tuple(place[_mixer(name, others)] for name in names_of_layers(num_layers, attention_config))
    return found if any(found) else None


def _mixer(name: str, others: Collection[str]) -> str:
    return name if name in others else SOFTMAX


def _layout(name: str, mode: str, others: Collection[str]) -> str | None:
    if name in _DENSE or name in others:
        return None
    return mode if name == SPARSE else _OTHER_NAMES.get(name, name)


def softmax_names(num_layers: int, attention_config: Sequence[Any] | None, sparsity: str) -> tuple[str | None, ...]:
    """For each layer its name where it has softmax attention without a layout: `global`, `sliding` or `nope`; or None.

    Raises ValueError when attention_config does not make num_layers layers.
    """
    if attention_config is None:
        dense = {"none": (SOFTMAX, SOFTMAX), "all": (None, None), "interspersed": (SOFTMAX, None)}[sparsity]
        return (dense * (num_layers // 2 + 1))[:num_layers]
    check_length(num_layers, attention_config, "attention")
    names = names_of_layers(num_layers, attention_config)
    return tuple((name if name in (SLIDING, NOPE) else SOFTMAX) if name in _DENSE else None for name in names)


def windows(names: Sequence[str | None], width: int | None) -> tuple[int | None, ...] | None:
    """The window of each layer, of those that `softmax_names` gives; None: no layer has one."""
    windowed = (SLIDING,) if SLIDING in names else (SOFTMAX, NOPE)
    found = tuple(width if name in windowed else None for name in names)
    return found if any(each is not None for each in found) else None
