"""DeepSpeed's way to say a learning-rate schedule."""

from typing import Any

from attrs import Factory, frozen

from neox_core.config.setting import setting


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
        help="Block with the schedule's type and params. Default: lr-decay-style says it.",
        origin="deepspeed",
    )
