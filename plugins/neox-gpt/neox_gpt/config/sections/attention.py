"""The mixer of each layer; which layers use block-sparse attention, and with which layout."""

from typing import Any, Literal

from attrs import Factory, frozen

from neox_core.api import setting
from neox_gpt.config.attention_config import pattern


@frozen
class AttentionSection:
    """Attention or another mixer in each layer, and block-sparse attention.

    `mode` in the block `sparse_attention` chooses the layout; the other keys of the block are the layout's own.
    """

    sparsity: Literal["none", "all", "interspersed"] = setting(
        "none",
        help="Layers with sparse attention: none, all, or every second one, layers 1, 3, 5 counted from 0.",
        origin="gpt-neox",
    )
    attention_softmax_in_fp32: bool = setting(
        False, help="Compute the softmax of attention in fp32.", origin="megatron"
    )
    sparse_attention: dict[str, Any] = setting(
        Factory(dict),
        help="The layout `mode`, by default fixed, and its settings. Without the block: variable, as in GPT-NeoX.",
        aliases=("sparsity_config",),
        origin="deepspeed",
    )
    attention_config: tuple[Any, ...] | None = setting(
        None,
        help="Mixer of each layer, instead of sparsity: [[[global, local], all]] repeats a pattern, or a list of "
        "one name for each layer; global is softmax attention over everything before, others are layouts or mixers.",
        check=pattern,
        origin="gpt-neox",
    )
