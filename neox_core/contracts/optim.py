"""Optimizers and learning-rate schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.plan.runfile import OptimPlan


class Optimizer(Protocol):
    """`target(params, settings) -> torch.optim.Optimizer`.

    params: groups `{"params": [...], "weight_decay": float}`; an option in a group wins over the settings. The
    optimizer reads `lr` from its groups at each step, since the schedule writes it there.

    It must be a `torch.optim.Optimizer` whose whole state is in `state_dict()`: saving, building anew and loading it
    changes no bit of what follows. `step()` leaves the gradients as they are, skips parameters without one, and is
    deterministic. Per-parameter state is either of the parameter's shape (sliced with it under ZeRO) or a scalar.
    Under ZeRO 1 and above it sees flat fp32 slices instead of parameters: see `Component.zero_stages`.
    """

    param_groups: list[dict[str, Any]]

    def step(self) -> Any: ...

    def zero_grad(self, set_to_none: bool = True) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


OptimizerTarget = Callable[[Iterable[Mapping[str, "Tensor | float"]], Any], Optimizer]


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
    that follows `step` finished ones, finite and never negative.
    """

    def __call__(self, step: int) -> float: ...


def planned_schedule(plan: OptimPlan, total_steps: int) -> LRSchedule:
    """The schedule of a plan, on the host or in a rank. Raises PluginError when the component cannot be loaded."""
    target, settings = plan.schedule.load()
    shape = ScheduleShape(
        peak_lr=plan.lr,
        min_lr=plan.min_lr,
        warmup_steps=plan.warmup_steps,
        decay_steps=plan.decay_steps,
        total_steps=total_steps,
    )
    schedule: LRSchedule = target(shape, settings)
    return schedule
