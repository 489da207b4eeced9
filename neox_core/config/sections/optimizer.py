"""Which optimizer runs, and how."""

from typing import Any

from attrs import field, frozen

from neox_core.config.setting import METADATA, SettingInfo, setting


@frozen
class OptimizerBlock:
    """`params` are the settings of the chosen optimizer: `neox plugins info NAME` lists them."""

    type: str = setting(help="Name of the optimizer.", origin="deepspeed")
    params: dict[str, Any] = field(
        factory=dict, kw_only=True, metadata={METADATA: SettingInfo("Settings of the optimizer.", origin="deepspeed")}
    )


@frozen
class OptimizerSection:
    """Which optimizer, and its settings."""

    optimizer: OptimizerBlock = setting(help="Block with the optimizer's type and params.", origin="deepspeed")
