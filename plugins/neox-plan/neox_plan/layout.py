"""A plan with other numbers of ranks, micro-batches or stages of ZeRO, and what its fullest rank then holds."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, cast

from attrs import evolve, frozen

from neox_core.plan.planners import architecture_planner, engine_planner
from neox_core.plan.runfile import RecomputePlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from neox_core.contracts.architecture import ModelSize, Shapes
    from neox_core.contracts.engine import Memory
    from neox_core.plan.resolve import Resolved
    from neox_core.plan.runfile import RunPlan


@frozen
class Layout:
    """How a model is spread: what a config can change without changing what is computed.

    * tensor, pipeline: ranks. micro_batch: samples. zero: the stage. recompute: whether activations are recomputed.
    """

    tensor: int
    pipeline: int
    micro_batch: int
    zero: int
    recompute: bool

    def keys(self) -> dict[str, Any]:
        """The config keys that ask for it."""
        return {
            "model-parallel-size": self.tensor,
            "pipe-parallel-size": self.pipeline,
            "train_micro_batch_size_per_gpu": self.micro_batch,
            "zero_optimization.stage": self.zero,
            "checkpoint-activations": self.recompute,
        }

    def __str__(self) -> str:
        ranks = f"tensor {self.tensor}, pipeline {self.pipeline}, ZeRO {self.zero}"
        return f"{ranks}, micro-batch {self.micro_batch}{', recomputation' if self.recompute else ''}"


def layout_of(plan: RunPlan) -> Layout:
    """The layout that a plan has."""
    return Layout(
        plan.cluster.tensor_parallel,
        plan.cluster.pipeline_parallel,
        plan.batch.micro_batch,
        plan.optim.zero_stage,
        plan.model.recompute is not None,
    )


def with_layout(plan: RunPlan, layout: Layout) -> RunPlan | None:
    """The same run in another layout; None where its ranks or its batch cannot be divided so."""
    return next(in_layouts(plan, (layout,)), None)


def in_layouts(plan: RunPlan, layouts: Iterable[Layout]) -> Iterator[RunPlan]:
    """The same run in those of the layouts in which its ranks and its batch can be divided so."""
    ranks = plan.cluster.tensor_parallel * plan.cluster.pipeline_parallel * plan.batch.data_parallel
    recompute = plan.model.recompute or RecomputePlan(1)
    models = {each: evolve(plan.model, recompute=recompute if each else None) for each in (False, True)}
    optims = {stage: evolve(plan.optim, zero_stage=stage) for stage in range(4)}
    for layout in layouts:
        copies, left = divmod(ranks, layout.tensor * layout.pipeline)
        passes, rest = divmod(plan.batch.train_batch, layout.micro_batch * copies) if copies else (0, 1)
        if not left and not rest and passes:
            yield evolve(
                plan,
                cluster=evolve(plan.cluster, tensor_parallel=layout.tensor, pipeline_parallel=layout.pipeline),
                batch=evolve(
                    plan.batch, micro_batch=layout.micro_batch, gradient_accumulation=passes, data_parallel=copies
                ),
                optim=optims[layout.zero],
                model=models[layout.recompute],
            )


def held_by(resolved: Resolved, plan: RunPlan) -> Shapes:
    """The parameters on the fullest rank before ZeRO shares them out: the ranks of tensor and pipeline set them."""
    return architecture_planner(resolved.config).on_fullest_rank(plan, cast("ModelSize", resolved.size))


def memory_of(resolved: Resolved, plan: RunPlan, held: Shapes) -> Memory:
    """What the fullest rank of a variant of a resolved run holds. held: as `held_by` of it."""
    (optimizer,) = resolved.config.components("optimizer")
    activations = architecture_planner(resolved.config).activation_bytes(plan, cast("ModelSize", resolved.size))
    numbers = optimizer.entry.component.state_numbers
    return engine_planner(resolved.config).memory(resolved.config, plan, held, activations, numbers)


def numbers_in(held: Shapes) -> int:
    """Of all parameters of a rank."""
    return sum(map(prod, held.values()))


def parameters_of(resolved: Resolved, plan: RunPlan) -> int:
    """Parameters on the fullest rank before ZeRO shares them out."""
    return numbers_in(held_by(resolved, plan))
