"""Rules of the optimizer, its schedule, clipping and decay."""

from collections.abc import Iterator

from neox_core.config.problem import Problem
from neox_core.config.schema.sections.optimizer import RegularizationSection
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.sections.schedule import LearningRateSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.planners import engine_planner
from neox_core.plan.rules.rule import number_is, rule


@rule("min_lr", "optimizer.params")
def floor_below_peak(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The learning rate does not decay to a value above its peak, which is a setting of the optimizer."""
    rate = config.section(LearningRateSection)
    (optimizer,) = config.components("optimizer")
    peak = getattr(optimizer.settings, "lr", None)
    if peak is None:
        yield config.problem(
            f"{optimizer.entry.qualified} has no setting lr, so no schedule can set it", "optimizer.type"
        )
    elif rate.min_lr > peak:
        yield config.problem(f"{rate.min_lr} is more than the peak optimizer.params.lr {peak}", "min-lr")


@rule("override_lr_scheduler", "use_checkpoint_lr_scheduler")
def one_schedule_at_resume(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """On resume, only one schedule counts: that of the config or that of the checkpoint."""
    rate = config.section(LearningRateSection)
    if rate.override_lr_scheduler and rate.use_checkpoint_lr_scheduler:
        yield config.problem("contradicts use-checkpoint-lr-scheduler", "override-lr-scheduler", "keep one of the two")


@rule("optimizer.type", "model_parallel_size")
def optimizer_sees_whole_parameters(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """An optimizer that needs whole parameters does not get parts of them."""
    (optimizer,) = config.components("optimizer")
    component, parts = optimizer.entry.component, config.section(ParallelismSection).model_parallel_size
    if component.whole_parameters and parts > 1:
        yield config.problem(
            f"{component.name} needs whole parameters, and {parts} tensor-parallel ranks hold parts of them",
            "model-parallel-size",
            "use 1, or an elementwise optimizer, such as Adam",
        )


NEEDS = {
    "closure": "computes gradients again within a step, and the engine {engine} computes them once",
    "modes": "has other weights for evaluation than for training, and the engine {engine} has one set of them",
}


@rule("optimizer.type", "engine")
def engine_does_what_optimizer_uses(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """An optimizer that computes gradients again, or has weights for evaluation, runs in an engine that does that."""
    (optimizer,), (engine,) = config.components("optimizer"), config.components("engine")
    done = getattr(engine_planner(config), "optimizer_uses", ())
    for use in optimizer.entry.component.uses:
        if use not in done:
            said = NEEDS[use].format(engine=engine.entry.component.name)
            yield config.problem(f"{optimizer.entry.component.name} {said}", "optimizer.type", "use engine: plain")


@rule("optimizer.type", "device")
def optimizer_runs_on_device(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """An optimizer runs on the devices that its author names."""
    (optimizer,) = config.components("optimizer")
    component = optimizer.entry.component
    if shape.device not in component.devices:
        yield config.problem(
            f"{component.name} runs on {', '.join(component.devices)} only, not on {shape.device}", "optimizer.type"
        )


@rule("optimizer.type", "fp16.enabled", "bf16.enabled")
def optimizer_suits_precision(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """An optimizer goes with the precisions that its author names."""
    (optimizer,) = config.components("optimizer")
    component, precision = optimizer.entry.component, engine_planner(config).precision(config)
    if precision.dtype not in component.precisions:
        suits = " or ".join(component.precisions)
        yield config.problem(
            f"{component.name} works poorly in {precision.dtype}", "optimizer.type", f"{suits} suits it", "warning"
        )


@rule("weight_decay", "optimizer.type")
def weight_decay_has_an_effect(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """weight-decay needs an optimizer that has the setting weight_decay."""
    (optimizer,) = config.components("optimizer")
    decay = config.section(RegularizationSection).weight_decay
    if config.is_set("weight-decay") and decay and not hasattr(optimizer.settings, "weight_decay"):
        name = optimizer.entry.component.name
        yield config.problem(
            f"does nothing: {name} has no setting weight_decay", "weight-decay", "remove it, or take another optimizer"
        )


@rule("weight_decay", "optimizer.params")
def weight_decay_agrees(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The decay of the optimizer and that of the model are one number."""
    (optimizer,) = config.components("optimizer")
    inner = getattr(optimizer.settings, "weight_decay", None)
    outer = config.section(RegularizationSection).weight_decay
    both = config.is_set("weight-decay") and config.is_set("optimizer.params.weight_decay")
    if both and not number_is(inner, outer):
        yield config.problem(
            f"differs from weight-decay {outer}", "optimizer.params.weight_decay", "keep one of the two"
        )
