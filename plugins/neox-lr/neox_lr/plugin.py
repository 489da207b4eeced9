"""Offers the curves of GPT-NeoX and the schedules of DeepSpeed."""

from neox_core.api import Component, hookimpl
from neox_lr.settings import (
    OneCycleSettings,
    RangeTestSettings,
    WarmupCosineSettings,
    WarmupDecaySettings,
    WarmupSettings,
)

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
        Component("1Cycle", "neox_lr.schedulers:one_cycle", OneCycleSettings, f"{ONE_CYCLE}; also OneCycle"),
        Component(
            "LRRangeTest",
            "neox_lr.schedulers:range_test",
            RangeTestSettings,
            "A rate that only grows, to find the one that breaks (arXiv:1506.01186)",
        ),
        Component("OneCycle", "neox_lr.schedulers:one_cycle", OneCycleSettings, ONE_CYCLE),
        Component(
            "WarmupCosineLR",
            "neox_lr.schedulers:warmup_cosine",
            WarmupCosineSettings,
            "A ramp, then half a cosine (DeepSpeed)",
        ),
        Component(
            "WarmupDecayLR",
            "neox_lr.schedulers:warmup_decay",
            WarmupDecaySettings,
            "A ramp, then a straight line to 0 (DeepSpeed)",
        ),
        Component("WarmupLR", "neox_lr.schedulers:warmup", WarmupSettings, "A ramp, then the highest rate (DeepSpeed)"),
    ]
