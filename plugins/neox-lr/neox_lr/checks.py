"""What a config may not ask of a schedule."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Problem


def problems(config: Any) -> Iterator[Problem]:
    """Of a scheduler, and of the schedule of `lr-decay-style`."""
    yield from _of_the_curve(config)
    for scheduler in config.components("scheduler"):
        if scheduler.entry.plugin.id == "neox-lr" and hasattr(scheduler.settings, "cycle_momentum"):
            yield from _of_the_cycle(config, scheduler.settings)


def _of_the_cycle(config: Any, settings: Any) -> Iterator[Problem]:
    for name in ("decay_lr_rate", "decay_mom_rate"):
        if getattr(settings, name) and not settings.decay_step_size:
            said = "does nothing while decay_step_size is 0"
            yield config.problem(said, f"scheduler.params.{name}", "set decay_step_size, or remove it", "warning")
    if settings.cycle_momentum:
        yield from _of_the_momentum(config, settings)


def _of_the_momentum(config: Any, settings: Any) -> Iterator[Problem]:
    """What the optimizer has to have, which of its settings this replaces, and how far it may grow."""
    from neox_lr.schedulers import SECOND_BETA, OneCycle  # 5 ms that other configs need not pay

    (optimizer,), key = config.components("optimizer"), "scheduler.params.cycle_momentum"
    name, has = optimizer.entry.component.name, {"betas", "momentum"} & set(dir(optimizer.settings))
    if len(has) != 1:
        said = "has two kinds of momentum, betas and momentum" if has else "has no momentum that could cycle"
        yield config.problem(f"{name} {said}", key, "write cycle_momentum: false, or choose another optimizer")
    elif has == {"momentum"} and not optimizer.settings.momentum:
        said = f"{name} keeps no momentum: its own is 0"
        yield config.problem(said, key, "set optimizer.params.momentum above 0, or cycle_momentum: false")
    elif has == {"betas"} and config.is_set("optimizer.params.betas"):
        said = f"does nothing: the scheduler cycles the first, and the second is {SECOND_BETA}, as in DeepSpeed"
        yield config.problem(said, "optimizer.params.betas", "remove it, or set cycle_momentum: false", "warning")
    last = config.value("train_iters") - 1
    if (momentum := OneCycle(settings).momentum(last)) >= 1:
        said = f"the momentum grows to {momentum:.4g} at step {last}, and has to stay below 1"
        yield config.problem(said, "scheduler.params.decay_mom_rate", "choose a lower rate")


def _of_the_curve(config: Any) -> Iterator[Problem]:
    """Of the schedule of `lr-decay-style`, unless a scheduler replaces it."""
    (curve,) = config.components("lr schedule")
    if curve.entry.plugin.id != "neox-lr" or config.components("scheduler"):
        return
    name, floor, (optimizer,) = curve.entry.component.name, config.value("min_lr"), config.components("optimizer")
    if name == "staged":
        for number, stage in enumerate(curve.settings.lr_stages, start=1):
            rate = stage.get("to", floor)
            if not floor <= rate <= optimizer.settings.lr:
                said = f"stage {number} ends at {rate:g}, and rates are from min-lr, {floor:g}, to the peak,"
                yield config.problem(f"{said} {optimizer.settings.lr:g}", "lr_stages", "change `to`, min-lr or lr")
    alike = name in ("constant", "linear") or (name == "cosine" and not floor)
    if alike and not config.value("warmup") and config.is_set("lr_decay_version"):
        yield config.problem(
            "does nothing: without a warm-up both curves are the same", "lr_decay_version", severity="note"
        )
    if name == "inverse-sqrt" and not config.value("warmup"):
        yield config.problem(
            "without a warm-up the second update has 0.7 of the peak, the tenth 0.3",
            "lr_decay_style",
            "set warmup",
            "warning",
        )
