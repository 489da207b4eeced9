"""What the fullest rank of a run holds of a decoder: closed forms over the plan."""

from neox_core.plan.runfile import RunPlan
from neox_gpt.config.plan import GPTPlan
from neox_gpt.config.size import DecoderSize

CHUNK_BYTES = {True: 24 << 20, False: 256 << 20}
"""Of fp32 logits, on a CPU and elsewhere: those of `loss.py`, which imports torch."""
TABLES = ("embedding.weight", "head.weight", "head.bias")


def on_fullest_rank(plan: RunPlan, model: GPTPlan, size: DecoderSize) -> dict[str, tuple[int, ...]]:
    """The shapes on the fullest rank: the layers of its stage, and its part of what is split or spread."""
    tensor = plan.cluster.tensor_parallel
    layers = _layers_of_a_stage(plan, model, size, model.num_unique_layers or model.num_layers)
    cut, spread = {**size.split, **dict.fromkeys(TABLES, 0)}, size.spread
    held = {}
    for name, shape in size.shapes.items():
        if name.startswith("layers.") and _layer(name) >= layers:
            continue
        mine = _part(shape, 0, spread[name]) if shape and name in spread else shape
        held[name] = _part(mine, cut[name], tensor) if name in cut and tensor > 1 else mine
    if plan.cluster.pipeline_parallel > 1 and not _shares_head(plan):  # the first stage and the last have a table each
        held.pop("head.weight", None)
    return held


def _shares_head(plan: RunPlan) -> bool:
    return plan.cluster.pipeline_parallel > 1 and plan.cluster.partition == "time+head"


def _part(shape: tuple[int, ...], dim: int, ranks: int) -> tuple[int, ...]:
    return (*shape[:dim], -(-shape[dim] // ranks), *shape[dim + 1 :])


def _layer(name: str) -> int:
    return int(name.split(".")[1])


def _layers_of_a_stage(plan: RunPlan, model: GPTPlan, size: DecoderSize, layers: int) -> int:
    """The most of all stages; where time cuts them, as if layers and head took as long as their products."""
    stages = plan.cluster.pipeline_parallel
    if _shares_head(plan):  # a stage goes forward while its neighbour goes backward, which takes twice as long
        return min(layers, -(-2 * layers // (stages + stages // 2)))
    if plan.cluster.partition != "time" or stages == 1:
        return -(-layers // stages)
    head = 6 * size.rows * model.hidden_size
    layer = (size.flops - head) * (1 if model.recompute is None else 4 / 3) / layers
    ways = [(beside_head, -(-(layers - beside_head) // (stages - 1))) for beside_head in range(layers)]
    fastest = min(ways, key=lambda way: max(way[0] * layer + head, way[1] * layer))
    return max(fastest)


def activation_bytes(plan: RunPlan, model: GPTPlan, size: DecoderSize) -> int:
    """Bytes kept for the backward pass, of as many micro-batches as a first stage has in flight, and of the loss."""
    tensor = plan.cluster.tensor_parallel
    width = plan.precision.bytes_each
    tokens = plan.batch.micro_batch * model.seq_length
    layers = _layers_of_a_stage(plan, model, size, model.num_layers)
    whole = tensor if plan.cluster.sequence_parallel else 1
    kept, cut = _kept(model, size.kept)
    kept += _of_norms(model, size, width)
    layer = tokens * width * (kept // whole + cut // tensor)
    inputs = tokens * width * model.hidden_size // whole
    if model.recompute is None:
        total = layers * layer
    else:
        segment = min(model.recompute.layers, layers)
        total = -(-layers // segment) * inputs + segment * layer
    stages, loss = plan.cluster.pipeline_parallel, loss_bytes(plan, model, size)
    under_way = min(stages, plan.batch.gradient_accumulation)
    first, last = total * under_way + (0 if stages > 1 and not _shares_head(plan) else loss), total + loss
    return max(first, last) + 3 * inputs


def loss_bytes(plan: RunPlan, model: GPTPlan, size: DecoderSize) -> int:
    """Bytes of `loss.cross_entropy` at its peak, at the end of the forward pass or at the start of the backward pass.

    Of a chunk of tokens: logits, and probabilities in fp32, which become their gradient. Of the head: the gradient in
    fp32, and the part of it that a chunk gives, on a CPU in fp32 as well.
    """
    cpu, half = plan.cluster.device == "cpu", plan.precision.bytes_each == 2
    rows = -(-size.rows // plan.cluster.tensor_parallel)
    logits = rows * min(plan.batch.micro_batch * model.seq_length, max(1, CHUNK_BYTES[cpu] // (4 * rows)))
    head = rows * model.hidden_size
    of_part = (6 if cpu else 2) if half else 4
    return max(8 * logits + (4 + of_part) * head, (4 + 4 + 4) * head)


def _of_norms(model: GPTPlan, size: DecoderSize, width: int) -> int:
    """Numbers of a token that the norms of a layer keep besides their inputs and outputs.

    A norm with a weight alone is made of several operations in fp32, and keeps the input divided by its length, in
    half precision the input in fp32 too. With weight and bias it is one operation, which keeps the input.
    """
    if size.of_norm != 1:
        return 0
    norms = (1 if model.shared_norm else 2) + (2 if model.norm_place == "both" else 0)
    return norms * model.hidden_size * (1 if width == 4 else 4)


def _kept(model: GPTPlan, sublayers: int) -> tuple[int, int]:
    """Numbers that a layer keeps of each token: (by every tensor rank, shared by the tensor ranks)."""
    inputs = (1 if model.parallel_residual else 2) + (1 if model.shared_norm else 2)  # of norms, and of projections
    inputs += 2 if model.norm_place == "both" else 0
    return inputs * model.hidden_size, sublayers
