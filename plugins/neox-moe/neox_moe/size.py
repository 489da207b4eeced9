"""The planner: asked on the host before a run starts."""

from neox_gpt.api import FeedForwardShape, FeedForwardSize, mlp_size

from neox_moe.settings import MoESettings


def moe_size(shape: FeedForwardShape, settings: MoESettings) -> FeedForwardSize:
    """The parameters of `neox_moe.layer.mixture`."""
    if settings.moe_num_experts == 1:
        return mlp_size(shape, None)
    experts, hidden, width = settings.moe_num_experts, shape.hidden_size, shape.intermediate_size
    halves = (2,) if shape.gated else ()
    shapes: dict[str, tuple[int, ...]] = {"router.weight": (experts, hidden)}
    shapes |= {"up.weight": (experts, *halves, width, hidden), "down.weight": (experts, hidden, width)}
    # A token's input and output at each of its experts, and what the MLP keeps there.
    kept = settings.moe_top_k * (2 * hidden + (4 if shape.gated else 2) * width) + 2 * experts
    spread = dict.fromkeys(("up.weight", "down.weight"), settings.moe_expert_parallel_size)
    flops = 6 * hidden * (experts + settings.moe_top_k * (2 + len(halves)) * width)
    return FeedForwardSize(shapes, {"up.weight": 1 + len(halves), "down.weight": 2}, kept, spread=spread, flops=flops)
