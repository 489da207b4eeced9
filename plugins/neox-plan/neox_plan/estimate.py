"""All that `neox plan` says of a run."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, cast

from attrs import evolve, frozen

from neox_plan.layout import parameters_of, with_layout
from neox_plan.scale import Scale, scale
from neox_plan.search import Candidate, accepted, candidate, candidates, changes_between, nearest, room
from neox_plan.step import Traffic, flops_of_step, traffic

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from neox_core.contracts.architecture import ModelSize
    from neox_core.plan.resolve import Resolved
    from neox_plan.gpus import Gpu

RANKED = 3
FIXED = 3


@frozen
class Estimate:
    """A run before it starts.

    * parameters: by part of the model. tokens: of a step; total_tokens: of the run. flops_per_token: as a rank counts
      them. seconds: of a step, None where the GPU is not known; mfu: as a share, with those seconds.
    * now: the layout of the config. recomputed: the same with the other choice of recomputation, for its activations.
    * room: bytes that fit on the GPU; None: it is not known. best: layouts that fit, the fastest first. fixes: where
      `now` does not fit, the keys to change.
    * scale: files, connections and logins; None of a run of one rank.
    """

    parameters: Mapping[str, int]
    tokens: int
    total_tokens: int
    steps: int
    ranks: int
    flops_per_token: int
    now: Candidate
    recomputed: Candidate
    sent: Traffic
    seconds: float | None
    mfu: float | None
    gpu: Gpu | None
    room: float | None
    best: list[Candidate]
    fixes: list[Mapping[str, object]]
    scale: Scale | None

    @property
    def fits(self) -> bool | None:
        """Whether the run fits the memory of a GPU; None: it is not known."""
        return None if self.room is None else self.now.memory.total <= self.room


def estimate(
    resolved: Resolved,
    gpu: Gpu | None,
    mfu: float | None,
    files: tuple[Path, ...],
    sets: tuple[str, ...],
    cluster: str,
) -> Estimate:
    """Ask every closed form.

    mfu: a measured share of the GPU's peak, in place of the model of a step. cluster: as `prepare_run` takes it.
    """
    plan, size = resolved.plan, cast("ModelSize", resolved.size)
    now = candidate(resolved, plan, gpu)
    other = evolve(now.layout, recompute=not now.layout.recompute)
    changed = with_layout(plan, other)
    seconds, share = _times(resolved, now, gpu, mfu)
    best: list[Candidate] = []
    fixes: list[Mapping[str, object]] = []
    if gpu is not None and plan.cluster.device == "cuda":
        fits = now.fits(gpu)
        found = candidates(resolved, gpu) if fits else list(candidates(resolved, gpu))
        fitting = (each for each in found if each.fits(gpu))
        best = accepted(fitting, resolved, files, sets, cluster, RANKED)
        if not fits:
            near = accepted(nearest(resolved, found, gpu), resolved, files, sets, cluster, FIXED)
            fixes = [changes_between(now.layout, each.layout) for each in near]
    tokens = plan.batch.train_batch * plan.model.seq_length
    return Estimate(
        parameters=by_part(size),
        tokens=tokens,
        total_tokens=plan.batch.samples_before(plan.train.train_iters) * plan.model.seq_length,
        steps=plan.train.train_iters,
        ranks=plan.cluster.world_size,
        flops_per_token=size.flops,
        now=now,
        recomputed=now if changed is None else candidate(resolved, changed, gpu),
        sent=traffic(plan, size, parameters_of(resolved, plan)),
        seconds=seconds,
        mfu=share,
        gpu=gpu,
        room=None if gpu is None or plan.cluster.device != "cuda" else room(gpu),
        best=best,
        fixes=fixes,
        scale=scale(resolved) if plan.cluster.world_size > 1 else None,
    )


def _times(resolved: Resolved, now: Candidate, gpu: Gpu | None, mfu: float | None) -> tuple[float | None, float | None]:
    """(seconds of a step, MFU)."""
    if gpu is None or now.step is None:
        return None, None
    precision = resolved.plan.precision
    peak = 1e12 * (gpu.tflops_fp32 if (precision.autocast or precision.dtype) == "fp32" else gpu.tflops)
    if mfu is None:
        return now.step.seconds, now.step.mfu(peak)
    return flops_of_step(resolved.plan, cast("ModelSize", resolved.size)) / (mfu * peak), mfu


def by_part(size: ModelSize) -> dict[str, int]:
    """Parameters by the first part of a name below the layers, the largest first."""
    parts: dict[str, int] = {}
    for name, shape in size.shapes.items():
        words = name.split(".")
        part = words[2] if words[0] == "layers" and len(words) > 2 else words[0]
        parts[part] = parts.get(part, 0) + prod(shape)
    return dict(sorted(parts.items(), key=lambda each: -each[1]))
