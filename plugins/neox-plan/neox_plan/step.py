"""How long a step takes: products, the pipeline's bubble, and what travels between ranks. Closed forms.

`benchmarks/plan_published.py` holds it to published runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from neox_core.contracts.architecture import ModelSize
    from neox_core.plan.runfile import RunPlan
    from neox_plan.gpus import Gpu

PRODUCTS = 0.62
"""Share of the peak that large products and what stands between them reach, of the width below and far more."""
HALF_WIDTH = 900
"""Width of a model, in elements, at which they reach half of that: in a narrow one more time is spent between them."""
REACHED = 0.8
"""Share of a link's data-sheet speed that collectives reach."""
HIDDEN = 0.5
"""Share of the backward pass behind which the averaging of gradients hides."""


@frozen
class Traffic:
    """Bytes that a rank sends in a step.

    tensor: within layers. pipeline: between stages. data: gradients, and weights.
    """

    tensor: float
    pipeline: float
    data: float


@frozen
class Step:
    """Seconds of a step by what they are spent on; flops: of the model, per rank and step."""

    products: float
    bubble: float
    tensor: float
    pipeline: float
    data: float
    flops: float

    @property
    def seconds(self) -> float:
        """The time of a step."""
        return self.products + self.bubble + self.tensor + self.pipeline + self.data

    def mfu(self, peak: float) -> float:
        """FLOPs of the model per second as a share of `peak`, in FLOP/s of a rank."""
        return self.flops / self.seconds / peak


def flops_of_step(plan: RunPlan, size: ModelSize) -> float:
    """FLOPs of a step of one rank, those of recomputation not counted."""
    ranks = plan.cluster.tensor_parallel * plan.cluster.pipeline_parallel * plan.batch.data_parallel
    return size.flops * plan.batch.train_batch * plan.model.seq_length / ranks


def traffic(plan: RunPlan, size: ModelSize, held: int) -> Traffic:
    """What a rank sends in a step. held: parameters on the fullest rank before ZeRO shares them out.

    A ring's all-reduce of b bytes among n ranks sends 2 b (n - 1) / n from each, a reduce-scatter or all-gather half of
    it. A layer has two all-reduces forward and two backward (arXiv:1909.08053, section 3), and two more where it is
    recomputed; those that neox-gpt joins are not left out. A stage sends activations on and their gradients back. ZeRO
    3 gathers weights twice and scatters gradients (arXiv:1910.02054, section 7).
    """
    cluster, batch = plan.cluster, plan.batch
    bytes_each = plan.precision.bytes_each
    if plan.precision.autocast:
        bytes_each = 2
    activations = batch.micro_batch * plan.model.seq_length * size.width * bytes_each
    layers = -(-plan.model.num_layers // cluster.pipeline_parallel)
    ring = _ring(cluster.tensor_parallel)
    reductions = 6 if plan.model.recompute else 4
    tensor = reductions * layers * batch.gradient_accumulation * 2 * ring * activations
    pipeline = 0 if cluster.pipeline_parallel == 1 else 2 * batch.gradient_accumulation * activations
    gradients = held * plan.precision.bytes_each
    passes = batch.gradient_accumulation if plan.optim.zero_stage == 3 else 1
    halves = 1 + 2 * passes if plan.optim.zero_stage == 3 else 2
    return Traffic(tensor, pipeline, halves * _ring(batch.data_parallel) * gradients)


def step_of(plan: RunPlan, size: ModelSize, held: int, gpu: Gpu) -> Step:
    """The seconds of a step on a GPU: see the constants of this module for what is assumed."""
    cluster = plan.cluster
    flops = flops_of_step(plan, size)
    computed = flops * (4 / 3 if plan.model.recompute else 1)
    peak = 1e12 * (gpu.tflops_fp32 if (plan.precision.autocast or plan.precision.dtype) == "fp32" else gpu.tflops)
    products = computed / (peak * PRODUCTS * size.width / (size.width + HALF_WIDTH))
    sent = traffic(plan, size, held)
    most = max(host.slots for host in cluster.hosts)
    within = 1e9 * REACHED * (gpu.link if cluster.tensor_parallel <= most else gpu.network)
    between = 1e9 * REACHED * (gpu.network if len(cluster.hosts) > 1 else gpu.link)
    tensor = sent.tensor / within
    bubble = (products + tensor) * (cluster.pipeline_parallel - 1) / plan.batch.gradient_accumulation
    data = max(0.0, sent.data / between - HIDDEN * products / plan.batch.gradient_accumulation)
    return Step(products, bubble, tensor, sent.pipeline / between, data, flops)


def _ring(ranks: int) -> float:
    return (ranks - 1) / ranks
