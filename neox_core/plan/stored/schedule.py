"""What a run keeps of its learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neox_core.plan.runfile import OptimPlan


def schedule_terms(plan: OptimPlan) -> dict[str, object]:
    """What decides the schedule, by config key: a resumed run compares it with its checkpoint."""
    chosen = plan.schedule
    terms = {
        "optimizer.params.lr": plan.lr,
        "min-lr": plan.min_lr,
        "warmup (in steps)": plan.warmup_steps,
        "lr-decay-iters": plan.decay_steps,
    }
    if chosen.kind == "scheduler":
        params = {f"scheduler.params.{name}": value for name, value in chosen.settings.items()}
        return {"scheduler.type": chosen.name, **params, **terms}
    settings = {name.replace("_", "-"): value for name, value in chosen.settings.items()}
    return {"lr-decay-style": chosen.name, **settings, **terms}
