"""The layout of each layer, from `sparsity` or from GPT-NeoX's `attention-config`."""

from collections.abc import Mapping, Sequence
from typing import Any

from neox_gpt.config.per_layer import check_form, check_length, items, names_of_layers

BLOCKS_MODE, DEFAULT_MODE = "fixed", "variable"
"""The layout of a block without `mode`, as in DeepSpeed's documents, and without a block, as GPT-NeoX builds it."""

SPARSE = "sparse"
"""In `attention-config`: the layout that `sparse_attention.mode` names."""

_DENSE = ("global", "flash")
_OTHER_NAMES = {"sparse_fixed": "fixed", "sparse_variable": "variable"}


def pattern(instance: Any, field: Any, value: Sequence[Any] | None) -> None:
    """Check the form of `attention-config`; a rule checks that it fits the number of layers."""
    if value is not None:
        check_form(value)


def layer_layouts(
    num_layers: int, sparsity: str, mode: str, attention_config: Sequence[Any] | None
) -> tuple[str | None, ...]:
    """The layout of each layer; None: the layer sees everything before it.

    Raises ValueError when attention_config does not make num_layers layers.
    """
    if attention_config is None:
        period = {"none": (None, None), "all": (mode, mode), "interspersed": (None, mode)}[sparsity]
        return (period * (num_layers // 2 + 1))[:num_layers]
    check_length(num_layers, attention_config, "attention")
    return tuple(_layout(each, mode) for each in names_of_layers(num_layers, attention_config))


def layouts_used(sparsity: str, mode: str, attention_config: Sequence[Any] | None) -> tuple[str, ...]:
    """The layouts in use, each once, in the order of the first layers that have them."""
    if attention_config is None:
        return () if sparsity == "none" else (mode,)
    names = (_layout(name, mode) for names, _ in items(attention_config) for name in names)
    return tuple(name for name in dict.fromkeys(names) if name is not None)


def mode_of(block: Mapping[str, Any]) -> Any:
    """The value of `mode` in the block, unchecked."""
    mode = block.get("mode")
    default = BLOCKS_MODE if block else DEFAULT_MODE
    return default if mode is None else mode


def _layout(name: str, mode: str) -> str | None:
    if name in _DENSE:
        return None
    return mode if name == SPARSE else _OTHER_NAMES.get(name, name)
