"""The learning rate over the run: GPT-NeoX's decay, or one of DeepSpeed's schedules."""

from typing import Any

from attrs import Factory, frozen

from neox_core.config.schema.checks import above, at_least, between
from neox_core.config.schema.setting import setting


@frozen
class LearningRateSection:
    """The learning rate over the run. Its peak is `optimizer.params.lr`."""

    lr_decay_style: str = setting("linear", help="Shape of the decay after the warm-up.", origin="megatron")
    lr_decay_iters: int | None = setting(
        None,
        help="Step at which the decay ends. Default: train-iters.",
        unit="steps",
        check=above(0),
        origin="megatron",
    )
    min_lr: float = setting(0.0, help="Learning rate at the end of the decay.", check=at_least(0), origin="megatron")
    warmup: float = setting(
        0.01,
        help="Share of the decay's steps that ramp the rate up from 0.",
        unit="fraction",
        check=between(0, 1),
        origin="megatron",
    )
    override_lr_scheduler: bool = setting(
        False, help="On resume, use the schedule of the config, not that of the checkpoint.", origin="megatron"
    )
    use_checkpoint_lr_scheduler: bool = setting(
        False, help="On resume, use the schedule of the checkpoint, not that of the config.", origin="megatron"
    )


@frozen
class SchedulerBlock:
    """`params` are the settings of the chosen schedule: `neox plugins info NAME` lists them."""

    type: str = setting(help="Name of the schedule.", origin="deepspeed")
    params: dict[str, Any] = setting(Factory(dict), help="Settings of the schedule.", origin="deepspeed")


@frozen
class SchedulerSection:
    """A learning-rate schedule of DeepSpeed in place of lr-decay-style."""

    scheduler: SchedulerBlock | None = setting(
        None,
        help="Block with the schedule's type and params. Default: the schedule of lr-decay-style.",
        origin="deepspeed",
    )
