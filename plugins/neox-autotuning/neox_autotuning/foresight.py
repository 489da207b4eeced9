"""What `neox plan` says of each trial before it runs. Without the package neox-plan, nothing is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from neox_core.hooks.install import how_to_install

if TYPE_CHECKING:
    from neox_plan.api import Candidate

    from neox_autotuning.settings import AutotuningBlock
    from neox_autotuning.space import Space, Trial
    from neox_core.plan.resolve import Resolved

DOUBT = 1.1
"""How much larger than its room a trial has to be told before it is left out: the closed forms err by a tenth."""


@frozen
class Foresight:
    """told: what a trial would take, for each stage and micro-batch that may be tried. room: bytes that a rank can
    fill, None when not known. note: a line for the user, "" when there is nothing to say.
    """

    told: dict[tuple[int, int], Candidate]
    metric: str
    samples: dict[int, int]
    room: float | None = None
    note: str = ""

    def of(self, trial: Trial) -> Candidate | None:
        """What a trial would take; None where its stage and micro-batch were not asked for."""
        return self.told.get((trial.stage, trial.micro_batch))

    def expect(self, trial: Trial) -> float:
        """What a trial is expected to give, larger is better; 0 for all where no time of a step is known."""
        value = self.value(trial)
        return 0.0 if value is None else -value if self.metric == "latency" else value

    def value(self, trial: Trial) -> float | None:
        """The metric that is told of a trial."""
        found = self.of(trial)
        if found is None or found.step is None:
            return None
        if self.metric == "latency":
            return found.step.seconds
        return (self.samples[trial.micro_batch] if self.metric == "throughput" else found.step.flops) / (
            found.step.seconds
        )

    def memory(self, trial: Trial) -> float | None:
        """GiB of the fullest rank."""
        found = self.of(trial)
        return None if found is None else found.memory.total / 2**30

    def too_large(self, trial: Trial) -> str:
        """Why a trial is left out; "" where it is not."""
        gib = self.memory(trial)
        if gib is None or self.room is None or gib * 2**30 <= DOUBT * self.room:
            return ""
        return f"is told to take {gib:,.1f} GiB a rank, of which {max(0.0, self.room) / 2**30:,.1f} GiB can be filled"


def foresee(resolved: Resolved, space: Space, block: AutotuningBlock, sizes: list[int]) -> Foresight:
    """Ask the plan about every stage and micro-batch. sizes: of micro-batches that the search tries."""
    try:
        from neox_plan.api import foreseen, gpu_here, room_here
    except ModuleNotFoundError:
        note = f"nothing is known of the trials before they run ({how_to_install('neox-plan')})"
        return Foresight({}, block.metric, {}, note=note)
    gpu = gpu_here() if resolved.plan.cluster.device == "cuda" else None
    told: dict[tuple[int, int], Candidate] = {}
    samples: dict[int, int] = {}
    for size in {*sizes, space.own[1]}:
        passes = space.accumulation if space.per_rank is None else space.per_rank // size
        samples[size] = size * passes * space.data_parallel
        for stage in {*space.stages, space.own[0]}:
            found = foreseen(resolved, micro_batch=size, accumulation=passes, zero=stage, gpu=gpu)
            if found is not None:
                told[stage, size] = found
    note = "" if gpu is not None else "`neox plan` tells no time of a step for this device: settings keep their order"
    if not told:
        note = "`neox plan` cannot tell the size of this model before a start: nothing is known of the trials"
    return Foresight(told, block.metric, samples, room_here(resolved, gpu), note)
