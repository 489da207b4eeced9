"""Keys that go to the engine directly."""

from typing import Any

from attrs import Factory, frozen

from neox_core.api import setting


@frozen
class EngineSection:
    """Keys of DeepSpeed that have no neox key."""

    deepspeed_extra_args: dict[str, Any] = setting(
        Factory(dict), help="Block of DeepSpeed's own keys, which are passed to it unchanged.", origin="gpt-neox"
    )
