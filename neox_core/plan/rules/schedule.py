"""Rules of the two ways to set a learning-rate schedule."""

import math
from collections.abc import Iterator

from attrs import evolve

from neox_core.config.problem import Problem
from neox_core.config.schema.owners import settings_by_key
from neox_core.config.schema.sections.schedule import LearningRateSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.lr_schedule import comes_with_optimizer, looked_at, rate_of, schedule_shape
from neox_core.plan.rules.rule import rule

CURVE_KEYS = ("lr_decay_style", "lr_decay_iters", "min_lr", "warmup")


@rule("scheduler", *CURVE_KEYS)
def one_schedule(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Next to `scheduler`, keys of the other kind of schedule must give the same learning rates."""
    schedulers, (curve,) = config.components("scheduler"), config.components("lr schedule")
    written = [key for key in (*CURVE_KEYS, *settings_by_key(curve.entry)) if config.is_set(key)]
    if not schedulers or not written or comes_with_optimizer(config):
        return
    terms = schedule_shape(config)
    one, other = rate_of(schedulers[0], terms), rate_of(curve, terms)
    for step in looked_at(terms.total_steps):
        if not math.isclose(one(step), other(step), rel_tol=1e-9, abs_tol=1e-15):
            yield config.problem(
                f"differs from scheduler: {other(step):.4g} at step {step}, {one(step):.4g} there",
                written[0],
                f"keep one of the two: without scheduler, or without {', '.join(written).replace('_', '-')}",
            )
            return


@rule("scheduler")
def scheduler_reaches_the_peak(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A scheduler that sets its own learning rates leaves optimizer.params.lr without effect."""
    schedulers, (optimizer,) = config.components("scheduler"), config.components("optimizer")
    if not schedulers or not config.is_set("optimizer.params.lr") or comes_with_optimizer(config):
        return
    terms = schedule_shape(config)
    rate, twice = (rate_of(schedulers[0], each) for each in (terms, evolve(terms, peak_lr=2 * terms.peak_lr)))
    steps = looked_at(terms.total_steps)
    highest = max(map(rate, steps))
    if all(rate(step) == twice(step) for step in steps) and highest > optimizer.settings.lr:
        yield config.problem(
            f"does nothing: scheduler sets its own learning rates, up to {highest:.4g}",
            "optimizer.params.lr",
            "set both to the same highest rate",
            "warning",
        )


@rule("optimizer.type", "lr_decay_style", "min_lr")
def schedule_of_the_optimizer(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """An optimizer that brings its own scheduler takes warmup and lr-decay-iters, and no other curve."""
    if not comes_with_optimizer(config):
        return
    (optimizer,), (scheduler,) = config.components("optimizer"), config.components("scheduler")
    rate = config.section(LearningRateSection)
    says = f"{optimizer.entry.component.name} runs with {scheduler.entry.component.name}"
    if config.is_set("lr_decay_style") and rate.lr_decay_style != "linear":
        yield config.problem(says, "lr_decay_style", "remove it, or write a `scheduler`")
    if rate.min_lr:
        yield config.problem(says, "min_lr", "remove it, or write a `scheduler`")


@rule("min_lr", "lr_decay_style")
def floor_is_reached(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """min-lr applies only where the schedule falls to it."""
    rate = config.section(LearningRateSection)
    if not rate.min_lr or config.components("scheduler"):
        return
    (curve,) = config.components("lr schedule")
    terms = schedule_shape(config)
    with_floor, without = (rate_of(curve, each) for each in (terms, evolve(terms, min_lr=0.0)))
    steps = (*looked_at(terms.total_steps), terms.total_steps - 1)
    if all(with_floor(step) == without(step) for step in steps):
        yield config.problem("does nothing: this schedule never falls to it", "min_lr", severity="note")
