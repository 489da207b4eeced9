"""Which layouts of a run fit, which of them is fastest, and what the nearest changes are that make one fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, product
from typing import TYPE_CHECKING, cast

from attrs import frozen

from neox_core.config.report import ProblemsError
from neox_core.plan.resolve import prepare_run
from neox_plan.layout import Layout, held_by, in_layouts, layout_of, memory_of, numbers_in
from neox_plan.step import Step, step_of

if TYPE_CHECKING:
    from pathlib import Path

    from neox_core.contracts.architecture import ModelSize, Shapes
    from neox_core.contracts.engine import Memory
    from neox_core.plan.resolve import Resolved
    from neox_core.plan.runfile import RunPlan
    from neox_plan.gpus import Gpu

LIBRARIES = 2 << 30
"""Bytes that CUDA, the libraries, and buffers for communication take of a GPU, by experience of DeepSpeed's users."""
FULL = 0.95
"""Share of a GPU's memory that a run can use: the rest is lost to fragments."""
MOST_TENSOR = 16


@frozen
class Candidate:
    """A layout, what its fullest rank holds, and how long its step takes where the GPU is known."""

    layout: Layout
    memory: Memory
    step: Step | None

    def fits(self, gpu: Gpu) -> bool:
        """Whether it fits the memory of this GPU."""
        return self.memory.total <= room(gpu)


def room(gpu: Gpu) -> float:
    """Bytes of a GPU that a run can fill."""
    return FULL * gpu.gib * 2**30 - LIBRARIES


def candidate(resolved: Resolved, plan: RunPlan, gpu: Gpu | None) -> Candidate:
    """A variant of a resolved run, measured by closed forms."""
    held = held_by(resolved, plan)
    return Candidate(layout_of(plan), memory_of(resolved, plan, held), _step(resolved, plan, numbers_in(held), gpu))


def candidates(resolved: Resolved, gpu: Gpu) -> Iterator[Candidate]:
    """All layouts of the run's ranks and batch by the time of a step, the fastest first. Some a rule may refuse.

    Memory, which takes longest to work out, is told of those that are asked for.
    """
    timed = []
    for _, same in groupby(_layouts(resolved.plan), key=lambda layout: (layout.tensor, layout.pipeline)):
        plans = [*in_layouts(resolved.plan, same)]
        held = held_by(resolved, plans[0]) if plans else {}
        parameters = numbers_in(held)
        timed += [(_step(resolved, plan, parameters, gpu), plan, held) for plan in plans]
    for _, equal in groupby(sorted(timed, key=_seconds), key=_seconds):
        told = (Candidate(layout_of(plan), memory_of(resolved, plan, held), step) for step, plan, held in equal)
        yield from sorted(told, key=lambda each: each.memory.total)


def _seconds(timed: tuple[Step | None, RunPlan, Shapes]) -> float:
    return 0.0 if timed[0] is None else timed[0].seconds


def _step(resolved: Resolved, plan: RunPlan, parameters: int, gpu: Gpu | None) -> Step | None:
    size = cast("ModelSize", resolved.size)
    return step_of(plan, size, parameters, gpu) if gpu is not None and size.flops else None


def _layouts(plan: RunPlan) -> Iterator[Layout]:
    ranks, batch = plan.cluster.world_size, plan.batch.train_batch
    tensors = [each for each in _powers(MOST_TENSOR) if ranks % each == 0]
    stages = [each for each in range(1, min(ranks, plan.model.num_layers) + 1) if ranks % each == 0]
    micros = [each for each in _powers(64) if batch % each == 0]
    for tensor, pipeline, micro, zero, recompute in product(tensors, stages, micros, (0, 1, 2, 3), (False, True)):
        if pipeline == 1 or zero < 2:  # a pipeline sends gradients before they can be shared out
            yield Layout(tensor, pipeline, micro, zero, recompute)


def _powers(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


def changes_between(old: Layout, new: Layout) -> dict[str, object]:
    """The keys that lead from one layout to another."""
    before = old.keys()
    return {key: value for key, value in new.keys().items() if value != before[key]}


def nearest(resolved: Resolved, found: Iterable[Candidate], gpu: Gpu) -> Iterator[Candidate]:
    """The layouts that fit, those with the fewest changes of keys first, the fastest of these before others."""
    now = layout_of(resolved.plan)
    fitting = [each for each in found if each.fits(gpu)]
    yield from sorted(fitting, key=lambda each: len(changes_between(now, each.layout)))


def accepted(
    found: Iterator[Candidate],
    resolved: Resolved,
    files: tuple[Path, ...],
    sets: tuple[str, ...],
    cluster: str,
    most: int,
) -> list[Candidate]:
    """The first `most` of them that the rules of the config accept, one for each tensor x pipeline x ZeRO."""
    kept: list[Candidate] = []
    seen: set[tuple[int, int, int]] = set()
    tried = 0
    for each in found:
        layout = each.layout
        kind = (layout.tensor, layout.pipeline, layout.zero)
        if kind in seen:
            continue
        seen.add(kind)
        tried += 1
        if _is_accepted(layout, resolved, files, sets, cluster):
            kept.append(each)
        if len(kept) == most or tried == 8 * most:
            break
    return kept


def _is_accepted(
    layout: Layout, resolved: Resolved, files: tuple[Path, ...], sets: tuple[str, ...], cluster: str
) -> bool:
    if layout == layout_of(resolved.plan):
        return True
    try:
        prepare_run(
            files, (*sets, *as_sets(layout.keys(), resolved)), catalog=resolved.catalog, start=False, cluster=cluster
        )
    except ProblemsError:
        return False
    return True


def as_sets(keys: Mapping[str, object], resolved: Resolved) -> tuple[str, ...]:
    """`--set` for a layout: the whole batch stays, so what its ranks add up follows."""
    words = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in keys.items()]
    return (*words, f"train_batch_size={resolved.plan.batch.train_batch}", "gradient_accumulation_steps=null")
