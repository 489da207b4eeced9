"""The memory that a run is expected to take on its fullest rank, by use: closed forms over the plan, before a start.

Not included: memory of the libraries (about 0.5 GiB on a GPU), communication buffers, and fragmentation.
"""

from math import prod

from attrs import frozen

from neox_core.plan.runfile import ModelPlan, RunPlan
from neox_core.plan.size import ModelSize, Shapes

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
CUT = (".qkv.weight", ".qkv.bias", ".up.weight", ".up.bias", ".output.weight", ".down.weight")
"""Suffixes of the names of parameters that tensor parallelism splits, besides the tables of the vocabulary."""
TABLES = ("embedding.weight", "head.weight")


@frozen
class Memory:
    """Bytes on the device of the fullest rank; host: bytes that are offloaded. state None: the optimizer does not
    declare it.
    """

    weights: int
    gradients: int
    masters: int
    state: int | None
    activations: int
    host: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.masters + (self.state or 0) + self.activations

    def in_words(self) -> str:
        """The sum and its parts, largest units first."""
        parts = {"weights": self.weights, "gradients": self.gradients, "fp32 masters": self.masters}
        parts |= {"optimizer": self.state or 0, "activations": self.activations}
        listed = [f"{name} {amount(size)}" for name, size in parts.items() if size]
        listed += ["without the optimizer's state, whose size it does not declare"] if self.state is None else []
        listed += [f"{amount(self.host)} on the host"] if self.host else []
        return f"about {amount(self.total)} a rank: {', '.join(listed)}"


def amount(size: int) -> str:
    """Bytes in GiB or MiB."""
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"


def expected_memory(plan: RunPlan, size: ModelSize, state_numbers: tuple[float, float] | None) -> Memory:
    """state_numbers: of the optimizer's component."""
    mine = _on_a_rank(plan, size.shapes)
    elements = sum(map(prod, mine.values()))
    edges = sum(map(sum, mine.values()))
    bytes_each, stage, share = BYTES[plan.precision.dtype], plan.optim.zero_stage, plan.batch.data_parallel
    stepped = share if stage >= 1 else 1
    # ZeRO steps fp32 copies of slices, in every precision; without ZeRO fp32 weights are stepped in place.
    copies = plan.precision.dtype != "fp32" or (stage >= 1 and not plan.optim.owns_parameters)
    masters = 4 * elements // stepped if copies else 0
    state = (
        None if state_numbers is None else int(4 * (state_numbers[0] * elements + state_numbers[1] * edges)) // stepped
    )
    weights = bytes_each * elements // (share if stage >= 3 else 1)
    zero = plan.engine.get("zero_optimization", {})
    host = 0
    if _offloaded(zero, "offload_optimizer"):
        host, masters, state = masters + (state or 0), 0, 0
    if _offloaded(zero, "offload_param"):
        host, weights = host + weights, 0
    gradients = bytes_each * elements // (share if stage >= 2 and not plan.optim.owns_parameters else 1)
    return Memory(weights, gradients, masters, state, _activations(plan, size), host)


def _offloaded(zero: dict[str, dict[str, str]], block: str) -> bool:
    return (zero.get(block) or {}).get("device", "none") != "none"


def _on_a_rank(plan: RunPlan, shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """The shapes that the fullest rank holds: the layers of its stage, and its part of split parameters."""
    tensor, stages = plan.cluster.tensor_parallel, plan.cluster.pipeline_parallel
    layers = _layers_of_a_stage(plan)
    held = {name: shape for name, shape in shapes.items() if not name.startswith("layers.") or _layer(name) < layers}
    if stages > 1 and "head.weight" in held:  # the first stage and the last have one table each
        del held["head.weight"]
    return {
        name: (-(-shape[0] // tensor), *shape[1:]) if name in TABLES or name.endswith(CUT) else shape
        for name, shape in held.items()
    }


def _layer(name: str) -> int:
    return int(name.split(".")[1])


def _layers_of_a_stage(plan: RunPlan) -> int:
    return -(-(plan.model.num_unique_layers or plan.model.num_layers) // plan.cluster.pipeline_parallel)


def _activations(plan: RunPlan, size: ModelSize) -> int:
    """Activations kept for the backward pass, of as many micro-batches as a first stage has in flight."""
    model, tensor = plan.model, plan.cluster.tensor_parallel
    width = BYTES[plan.precision.dtype]
    tokens = plan.batch.micro_batch * model.seq_length
    layers = -(-model.num_layers // plan.cluster.pipeline_parallel)
    whole = tensor if plan.cluster.sequence_parallel else 1
    kept, cut = _kept(model, gated=size.gated)
    layer = tokens * width * (kept // whole + cut // tensor)
    inputs = tokens * width * model.hidden_size // whole
    if model.recompute is None:
        total = layers * layer
    else:
        segment = min(model.recompute.layers, layers)
        total = -(-layers // segment) * inputs + segment * layer
    under_way = min(plan.cluster.pipeline_parallel, plan.batch.gradient_accumulation)
    return total * under_way + 3 * inputs


def _kept(model: ModelPlan, *, gated: bool) -> tuple[int, int]:
    """Numbers that a layer keeps of each token: (by every tensor rank, shared by the tensor ranks)."""
    hidden, width = model.hidden_size, model.intermediate_size
    keys = (model.num_kv_heads or model.num_attention_heads) * (hidden // model.num_attention_heads)
    inputs = (1 if model.parallel_residual else 2) + (1 if model.shared_norm else 2)  # of norms, and of projections
    whole = inputs * hidden
    attention = (hidden + 2 * keys) + (hidden + keys) + 2 * hidden  # q, k, v; q and k rotated; the result, by heads too
    mlp = (4 if gated else 2) * width  # value and gate, the gate's activation, their product; or before and after
    return whole, attention + mlp
