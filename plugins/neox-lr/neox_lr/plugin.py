"""Offers the curves of GPT-NeoX, three that it does not have, and the schedules of DeepSpeed."""

from collections.abc import Iterable
from typing import Any

from neox_core.api import Component, Problem, hookimpl

ONE_CYCLE = "Up, down, and slowly further down (arXiv:1803.09820)"


@hookimpl
def neox_lr_schedules() -> list[Component]:
    return [
        _curve("constant", "The peak, after warm-up"),
        _curve("cosine", "Half a cosine from the peak to min-lr"),
        _curve("exponential", "exp(-0.693 t): half of the peak at the end"),
        Component("inverse-sqrt", "neox_lr.staged:inverse_sqrt", summary="The peak x sqrt(warm-up / step)"),
        _curve("linear", "A straight line from the peak to zero"),
        Component(
            "staged", "neox_lr.staged:staged", "neox_lr.staged_settings:StagedSettings", "A list of stages, lr-stages"
        ),
        Component(
            "wsd",
            "neox_lr.staged:wsd",
            "neox_lr.staged_settings:WSDSettings",
            "Warm-up, stable, decay: the peak, and a fall to min-lr at the end (arXiv:2404.06395)",
        ),
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


@hookimpl
def neox_check_config(config: Any) -> Iterable[Problem]:
    from neox_lr.checks import problems  # listing plugins needs none of it

    return problems(config)


def _curve(name: str, summary: str) -> Component:
    return Component(name, f"neox_lr.schedules:{name}", "neox_lr.curve_settings:CurveSettings", summary)


def _scheduler(name: str, target: str, settings: str, summary: str) -> Component:
    return Component(name, f"neox_lr.schedulers:{target}", f"neox_lr.settings:{settings}", summary)
