"""What a config may not ask of a schedule."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Problem


def problems(config: Any) -> Iterator[Problem]:
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
    if name == "inverse-sqrt" and not config.value("warmup"):
        yield config.problem(
            "without a warm-up the second update has 0.7 of the peak, the tenth 0.3",
            "lr_decay_style",
            "set warmup",
            "warning",
        )
