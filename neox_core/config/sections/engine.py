"""What goes to the engine past all sections."""

from typing import Any

from attrs import field, frozen

from neox_core.config.setting import METADATA, SettingInfo


@frozen
class EngineSection:
    """Keys of DeepSpeed that neox has none for."""

    deepspeed_extra_args: dict[str, Any] = field(
        factory=dict,
        kw_only=True,
        metadata={METADATA: SettingInfo("Block of DeepSpeed's own keys, handed to it as they are.", origin="gpt-neox")},
    )
