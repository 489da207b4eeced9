"""The planner of softmax attention."""

from neox_gpt.contracts import ByHead, MixerShape, MixerSize


def attention_size(shape: MixerShape, settings: None) -> MixerSize:
    """The parameters of `neox_gpt.attention.attention.Attention`.

    FLOPs: 12 * hidden * seq for scores and values, their causal half not taken off: PaLM (arXiv:2204.02311),
    appendix B.
    """
    hidden, width, keys = shape.hidden_size, shape.qkv_width, shape.num_kv_heads * shape.head_dim
    shapes: dict[str, tuple[int, ...]] = {"qkv.weight": (width, hidden), "qkv.bias": (width,)}
    shapes |= {"output.weight": (hidden, hidden), "output.bias": (hidden,)}
    if not shape.bias:
        shapes = {name: sides for name, sides in shapes.items() if not name.endswith("bias")}
    by_key = ByHead(0, shape.num_kv_heads)
    split = {"qkv.weight": by_key, "qkv.bias": by_key, "output.weight": ByHead(1, shape.num_heads)}
    uses = ("bias", "dropout", "num_kv_heads", "query_key_layer_scaling", "softmax_in_fp32")
    return MixerSize(
        shapes,
        {name: each for name, each in split.items() if name in shapes},
        flops=6 * hidden * (width + hidden) + 12 * hidden * shape.seq_length,
        kept=(hidden + 2 * keys) + (hidden + keys) + 2 * hidden,  # q, k, v; q and k rotated; the result, by heads too
        decodes=True,
        needs_positions=True,
        uses=frozenset(uses),
    )
