"""The planner of softmax attention."""

from neox_gpt.contracts import ByHead, MixerShape, MixerSize


def attention_size(shape: MixerShape, settings: None) -> MixerSize:
    """The parameters of `neox_gpt.attention.attention.Attention`."""
    hidden, width, keys = shape.hidden_size, shape.qkv_width, shape.num_kv_heads * shape.head_dim
    shapes: dict[str, tuple[int, ...]] = {"qkv.weight": (width, hidden), "qkv.bias": (width,)}
    shapes |= {"output.weight": (hidden, shape.width), "output.bias": (hidden,)}
    biases = {"qkv.bias": shape.bias, "output.bias": shape.ends_in_bias}
    shapes = {name: sides for name, sides in shapes.items() if biases.get(name, True)}
    by_key = ByHead(0, shape.num_kv_heads)
    split = {"qkv.weight": by_key, "qkv.bias": by_key, "output.weight": ByHead(1, shape.num_heads)}
    uses = {"bias", "dropout", "head_dim", "multiplier", "num_kv_heads", "output_bias", "qk_norm", "softcap"}
    return MixerSize(
        shapes,
        {name: each for name, each in split.items() if name in shapes},
        flops=attention_flops(shape, shape.seq_length),
        kept=width
        + (shape.width + keys) * (1 if shape.qk_norm is None else 2)
        + 2 * shape.width,  # q, k, v; q and k rotated; the result, by heads too
        decodes=True,
        needs_positions=True,
        uses=frozenset(uses | {"query_key_layer_scaling", "softmax_in_fp32"}),
        norms=norm_widths(shape),
    )


def norm_widths(shape: MixerShape) -> dict[str, int]:
    """The norms of queries and keys by name, and what each normalises at once, in elements."""
    if shape.qk_norm is None:
        return {}
    if shape.qk_norm == "shared":
        return {"qk_norm.both": shape.width}
    each = shape.qk_norm == "head"
    keys = shape.num_kv_heads * shape.head_dim
    return {"qk_norm.query": shape.head_dim if each else shape.width, "qk_norm.key": shape.head_dim if each else keys}


def attention_flops(shape: MixerShape, seq: int) -> int:
    """Floating-point operations of forward and backward for one token of a sequence of `seq` tokens.

    6 for each weight, and 12 * heads * head_dim for each token that is seen, of those in a sample or a window, their
    causal half not taken off: PaLM (arXiv:2204.02311), appendix B.
    """
    seen = seq if shape.window is None else min(seq, shape.window + 1)
    return 6 * shape.hidden_size * (shape.qkv_width + shape.width) + 12 * shape.width * seen
