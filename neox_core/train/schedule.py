"""The learning rate of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neox_core.contracts.optim import LRSchedule, ScheduleShape

if TYPE_CHECKING:
    from neox_core.plan.runfile import OptimPlan


def build_schedule(plan: OptimPlan, total_steps: int) -> LRSchedule:
    """The planned schedule: step -> learning rate. Raises PluginError when the component cannot be loaded."""
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


def schedule_terms(plan: OptimPlan) -> dict[str, object]:
    """What decides the schedule, by config key: a resumed run compares it with its checkpoint."""
    return {
        "lr-decay-style": plan.schedule.name,
        **{name.replace("_", "-"): value for name, value in plan.schedule.settings.items()},
        "optimizer.params.lr": plan.lr,
        "min-lr": plan.min_lr,
        "warmup (in steps)": plan.warmup_steps,
        "lr-decay-iters": plan.decay_steps,
    }
