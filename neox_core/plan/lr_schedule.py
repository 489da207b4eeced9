"""The learning rate by step, computed on the host from the schedules of a config before anything runs."""

from collections.abc import Callable

from attrs import evolve

from neox_core.config.schema.sections.schedule import LearningRateSection, SchedulerSection
from neox_core.config.schema.sections.training import TrainingSection
from neox_core.config.schema.structure import Chosen, Config
from neox_core.contracts.optim import ScheduleShape
from neox_core.hooks.install import require_modules

Rate = Callable[[int], float]


def schedule_shape(config: Config) -> ScheduleShape:
    """Peak, floor and lengths of a valid config's schedule."""
    rate, (optimizer,) = config.section(LearningRateSection), config.components("optimizer")
    total_steps = config.section(TrainingSection).train_iters
    decay_steps = rate.lr_decay_iters or total_steps
    return ScheduleShape(
        peak_lr=optimizer.settings.lr,
        min_lr=rate.min_lr,
        warmup_steps=round(rate.warmup * decay_steps, 9),  # 29.0 where the share is 0.29
        decay_steps=decay_steps,
        total_steps=total_steps,
    )


def chosen_schedule(config: Config) -> Chosen:
    """`scheduler` where there is one, the optimizer's own where that has one, else `lr-decay-style`."""
    for chosen in config.components("scheduler"):
        return _with_lengths(chosen, schedule_shape(config)) if comes_with_optimizer(config) else chosen
    (chosen,) = config.components("lr schedule")
    return chosen


def comes_with_optimizer(config: Config) -> bool:
    """Whether the scheduler is the one that the optimizer brings along."""
    return config.section(SchedulerSection).scheduler is None and bool(config.components("scheduler"))


def _with_lengths(chosen: Chosen, shape: ScheduleShape) -> Chosen:
    """`warmup` and `lr-decay-iters` under DeepSpeed's names, as far as the scheduler has them."""
    lengths = {"warmup_num_steps": max(1, int(shape.warmup_steps)), "total_num_steps": shape.decay_steps}
    known = {name: value for name, value in lengths.items() if hasattr(chosen.settings, name)}
    return evolve(chosen, settings=evolve(chosen.settings, **known))


def rate_of(chosen: Chosen, shape: ScheduleShape) -> Rate:
    """Step -> rate. Raises PluginError when the schedule, or a module that it needs, cannot be imported."""
    require_modules(chosen.entry)
    rate: Rate = chosen.entry.load()(shape, chosen.settings)
    return rate


def looked_at(total_steps: int, most: int = 2000) -> range:
    """Steps of a run, evenly spread: all of a short one."""
    return range(0, total_steps, max(1, total_steps // most))
