"""What goes to the engine past all sections."""

from typing import Any

from attrs import Factory, frozen

from neox_core.config.schema.setting import setting


@frozen
class EngineSection:
    """Keys of DeepSpeed that neox has none for."""

    deepspeed_extra_args: dict[str, Any] = setting(
        Factory(dict), help="Block of DeepSpeed's own keys, handed to it as they are.", origin="gpt-neox"
    )
