"""The mixer of each layer; which layers use block-sparse attention, and with which layout."""

from typing import Any, Literal

from attrs import Factory, frozen

from neox_core.api import setting
from neox_core.config.schema.checks import above
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
        "one name for each layer; global is softmax attention over everything before, sliding in a window, nope "
        "without positions; others are layouts or mixers.",
        check=pattern,
        origin="gpt-neox",
    )
    sliding_window_width: int | None = setting(
        None,
        help="A token sees itself and so many tokens before it: in the layers that attention-config calls sliding, or, "
        "where it calls none so, in all with softmax attention and no layout. Default: everything before it.",
        unit="tokens",
        check=above(0),
        origin="gpt-neox",
    )
    attention_multiplier: float | None = setting(
        None, help="What scores are multiplied by. Default: the width of a head to the power of -1/2.", check=above(0)
    )
    attention_softcap: float | None = setting(
        None, help="c of c tanh(score / c), which keeps scores of attention within c. Default: none.", check=above(0)
    )
    use_qk_layernorm: bool = setting(
        False,
        help="Normalise queries and keys, all heads of a token together, with one norm of the kind norm for both. "
        "GPT-NeoX takes the heads of each model-parallel rank together; neox all of them, whatever the ranks.",
        origin="gpt-neox",
    )
    qk_norm: Literal["head", "all"] | None = setting(
        None,
        help="Normalise queries and keys, with a norm for each of the kind norm: head, each head by itself, as Qwen 3 "
        "does, or all heads together, as OLMo 2 does. Default: no norm.",
    )
