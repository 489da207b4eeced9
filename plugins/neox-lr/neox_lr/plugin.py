"""Offers the four curves of GPT-NeoX."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_lr_schedules() -> list[Component]:
    return [
        Component("constant", "neox_lr.schedules:constant", summary="The peak, after warm-up"),
        Component("cosine", "neox_lr.schedules:cosine", summary="Half a cosine from the peak to zero"),
        Component("exponential", "neox_lr.schedules:exponential", summary="exp(-0.693 t): half of the peak at the end"),
        Component("linear", "neox_lr.schedules:linear", summary="A straight line from the peak to zero"),
    ]
