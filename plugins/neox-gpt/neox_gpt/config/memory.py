"""What the fullest rank of a run holds of a decoder: closed forms over the plan."""

from neox_core.plan.runfile import RunPlan
from neox_gpt.config.plan import GPTPlan
from neox_gpt.config.size import DecoderSize

TABLES = ("embedding.weight", "head.weight", "head.bias")


def on_fullest_rank(plan: RunPlan, model: GPTPlan, size: DecoderSize) -> dict[str, tuple[int, ...]]:
    """The shapes on the fullest rank: the layers of its stage, and its part of what is split or spread."""
    tensor, stages = plan.cluster.tensor_parallel, plan.cluster.pipeline_parallel
    layers = _layers_of_a_stage(plan, model)
    held = {
        name: shape for name, shape in size.shapes.items() if not name.startswith("layers.") or _layer(name) < layers
    }
    if stages > 1 and "head.weight" in held:  # the first stage and the last have one table each
        del held["head.weight"]
    cut = dict(size.split) | {name: 0 for name in held if name in TABLES}
    held = {name: _part(shape, 0, size.spread.get(name, 1)) if shape else shape for name, shape in held.items()}
    return {name: _part(shape, cut[name], tensor) if name in cut else shape for name, shape in held.items()}


def _part(shape: tuple[int, ...], dim: int, ranks: int) -> tuple[int, ...]:
    return (*shape[:dim], -(-shape[dim] // ranks), *shape[dim + 1 :])


def _layer(name: str) -> int:
    return int(name.split(".")[1])


def _layers_of_a_stage(plan: RunPlan, model: GPTPlan) -> int:
    return -(-(model.num_unique_layers or model.num_layers) // plan.cluster.pipeline_parallel)


def activation_bytes(plan: RunPlan, model: GPTPlan, size: DecoderSize) -> int:
    """Bytes kept for the backward pass, of as many micro-batches as a first stage has in flight."""
    tensor = plan.cluster.tensor_parallel
    width = plan.precision.bytes_each
    tokens = plan.batch.micro_batch * model.seq_length
    layers = -(-model.num_layers // plan.cluster.pipeline_parallel)
    whole = tensor if plan.cluster.sequence_parallel else 1
    kept, cut = _kept(model, size.kept)
    layer = tokens * width * (kept // whole + cut // tensor)
    inputs = tokens * width * model.hidden_size // whole
    if model.recompute is None:
        total = layers * layer
    else:
        segment = min(model.recompute.layers, layers)
        total = -(-layers // segment) * inputs + segment * layer
    under_way = min(plan.cluster.pipeline_parallel, plan.batch.gradient_accumulation)
    return total * under_way + 3 * inputs


def _kept(model: GPTPlan, sublayers: int) -> tuple[int, int]:
    """Numbers that a layer keeps of each token: (by every tensor rank, shared by the tensor ranks)."""
    inputs = (1 if model.parallel_residual else 2) + (1 if model.shared_norm else 2)  # of norms, and of projections
    inputs += 2 if model.norm_place == "both" else 0
    return inputs * model.hidden_size, sublayers
