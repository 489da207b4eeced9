"""Which optimizer a run uses, and its settings."""

from typing import Any

from attrs import Factory, frozen

from neox_core.config.schema.setting import setting


@frozen
class OptimizerBlock:
    """`params` are the settings of the chosen optimizer: `neox plugins info NAME` lists them."""

    type: str = setting(help="Name of the optimizer.", origin="deepspeed")
    params: dict[str, Any] = setting(Factory(dict), help="Settings of the optimizer.", origin="deepspeed")


@frozen
class OptimizerSection:
    """Which optimizer, and its settings."""

    optimizer: OptimizerBlock = setting(help="Block with the optimizer's type and params.", origin="deepspeed")
