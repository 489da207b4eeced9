"""Offers the curves of GPT-NeoX and the schedules of DeepSpeed."""

from neox_core.api import Component, hookimpl

ONE_CYCLE = "Up, down, and slowly further down (arXiv:1803.09820)"


@hookimpl
def neox_lr_schedules() -> list[Component]:
    return [
        Component("constant", "neox_lr.schedules:constant", summary="The peak, after warm-up"),
        Component("cosine", "neox_lr.schedules:cosine", summary="Half a cosine from the peak to zero"),
        Component("exponential", "neox_lr.schedules:exponential", summary="exp(-0.693 t): half of the peak at the end"),
        Component("linear", "neox_lr.schedules:linear", summary="A straight line from the peak to zero"),
    ]


@hookimpl
def neox_schedulers() -> list[Component]:
    return [
        _scheduler("1Cycle", "one_cycle", "OneCycleSettings", f"{ONE_CYCLE}; also OneCycle"),
        _scheduler(
            "LRRangeTest",
            "range_test",
            "RangeTestSettings",
            "A rate that only grows, to find the one that breaks (arXiv:1506.01186)",
        ),
        _scheduler("OneCycle", "one_cycle", "OneCycleSettings", ONE_CYCLE),
        _scheduler("WarmupCosineLR", "warmup_cosine", "WarmupCosineSettings", "A ramp, then half a cosine (DeepSpeed)"),
        _scheduler(
            "WarmupDecayLR", "warmup_decay", "WarmupDecaySettings", "A ramp, then a straight line to 0 (DeepSpeed)"
        ),
        _scheduler("WarmupLR", "warmup", "WarmupSettings", "A ramp, then the highest rate (DeepSpeed)"),
    ]


def _scheduler(name: str, target: str, settings: str, summary: str) -> Component:
    return Component(name, f"neox_lr.schedulers:{target}", f"neox_lr.settings:{settings}", summary)
