"""Optimizers and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.plan.runfile import OptimPlan


class Optimizer(Protocol):
    """`target(params, settings) -> torch.optim.Optimizer`.

    params: groups `{"params": [...], "weight_decay": float}`; an option in a group wins over the settings, which hold
    for a group without it. The optimizer reads `lr` from its groups at each step, since the schedule writes it there;
    it is above 0 to begin with, and at 0 the weights stay. One that decays weights has a setting `weight_decay`: where
    there is none, `weight-decay` is refused in a config, and groups have 0.

    It must be a `torch.optim.Optimizer` whose whole state is in `state_dict()`, in tensors and plain numbers: saving,
    building anew and loading it changes no bit of what follows. `step()` moves the weights that have a gradient, those
    too whose first one comes late, and keeps them finite while gradients are. It leaves the gradients as they are,
    skips parameters without one, and is deterministic whatever torch's generator draws. `zero_grad()` lets go of
    gradients. Per-parameter state is either of the parameter's shape (sliced with it under ZeRO) or a scalar; with
    `Component.whole_parameters` it may also be one number for each index of a dimension, in a tensor that broadcasts
    to the parameter: [d1, 1] and [1, d2] of a [d1, d2]. Such an optimizer is not run on parts of parameters: at
    ZeRO 1 its groups are left the parameters that the rank owns, which may be none, after it is made of all. Any other
    sees flat fp32 slices instead of parameters under ZeRO 1 and above: see `Component.zero_stages`. A parameter with an
    attribute `is_table` that is True is a vocabulary's: an embedding, or the head.
    """

    param_groups: list[dict[str, Any]]

    def step(self) -> Any: ...

    def zero_grad(self, set_to_none: bool = True) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@runtime_checkable
class AveragingOptimizer(Protocol):
    """An optimizer that exchanges over the data-parallel ranks by itself, at ZeRO stage 0 and data parallelism alone.

    Its target takes a third argument by the name `group`: the process group of those ranks, None for one rank.
    Parameters and state are the same on all of them, but for what `own_state` holds. All ranks step together, and all
    or none of them has a gradient for a parameter. Gradients are clipped before `step()`: averaged ones by their norm,
    a rank's own by the root mean square of all ranks' norms, which is never below the norm of the average.
    """

    def needs_average(self) -> bool:
        """Whether the next `step()` is to find gradients that are averaged over the ranks, or else the rank's own."""
        ...

    def own_state(self) -> Mapping[str, Tensor]:
        """What this rank alone knows, by name; empty where the ranks are at one."""
        ...

    def load_own_state(self, stored: Sequence[Mapping[str, Tensor]]) -> None:
        """Take over the `own_state` of all ranks of a run, in their order, which may have had another number of ranks.

        As many ranks go on bit for bit. Called after the parameters and `state_dict()` are loaded.
        """
        ...


@frozen
class ScheduleShape:
    """Peak and floor of the learning rate; lengths in optimizer steps.

    warmup_steps: length of the linear ramp from 0. decay_steps: the step at which the decay ends, warm-up included.
    total_steps: length of the run.
    """

    peak_lr: float
    min_lr: float
    warmup_steps: int
    decay_steps: int
    total_steps: int


class LRSchedule(Protocol):
    """`target(shape: ScheduleShape, settings) -> LRSchedule`; imported on the host too, so it is light.

    A pure function of the step, so that resuming needs no replay: `schedule(step)` is the learning rate of the update
    that follows `step` finished ones, a float, finite and never negative; also for steps after the end of the run.

    One that `lr-decay-style` names climbs in a straight line from 0 to `peak_lr` in `warmup_steps`, is never above it,
    starts its decay within a twentieth of it, is afterwards never below `min_lr`, and stays the same from `decay_steps`
    on.
    """

    def __call__(self, step: int) -> float: ...


def planned_schedule(plan: OptimPlan, total_steps: int) -> LRSchedule:
    """The schedule of a plan, on the host or in a rank. It raises PluginError for a fault of the component."""
    shape = ScheduleShape(
        peak_lr=plan.lr,
        min_lr=plan.min_lr,
        warmup_steps=plan.warmup_steps,
        decay_steps=plan.decay_steps,
        total_steps=total_steps,
    )
    schedule: LRSchedule = plan.schedule.make(shape)

    def rate(step: int) -> float:
        with plan.schedule.blamed():
            found = schedule(step)
        if not isinstance(found, float | int) or not 0 <= found < math.inf:
            raise plan.schedule.fault(f"the learning rate of step {step} is {found!r}, not 0 or more")
        return found

    return rate
