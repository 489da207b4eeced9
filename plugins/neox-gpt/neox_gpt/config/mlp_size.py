"""The planner of the MLP."""

from neox_gpt.contracts import FeedForwardShape, FeedForwardSize


def mlp_size(shape: FeedForwardShape, settings: None) -> FeedForwardSize:
    """The parameters of `neox_gpt.mlp.MLP`."""
    hidden, width = shape.hidden_size, shape.intermediate_size
    inner = 2 * width if shape.gated else width
    shapes: dict[str, tuple[int, ...]] = {"up.weight": (inner, hidden), "up.bias": (inner,)}
    shapes |= {"down.weight": (hidden, width), "down.bias": (hidden,)}
    if not shape.bias:
        shapes = {name: sides for name, sides in shapes.items() if not name.endswith("bias")}
    split = {"up.weight": 0, "up.bias": 0, "down.weight": 1}
    kept = (
        4 if shape.gated else 2
    ) * width  # value and gate, the gate's activation, their product; or before and after
    return FeedForwardSize(shapes, {name: dim for name, dim in split.items() if name in shapes}, kept)
