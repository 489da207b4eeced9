"""Settings under optimizer.params."""

from typing import Any

from attrs import frozen

from neox_core.api import MomentSettings, setting


@frozen
class AdamWSettings(MomentSettings):
    torch_adam: bool = setting(
        False,
        help="Use torch's plain implementation instead of the fused one: slower, same formula.",
        changes="speed",
        origin="deepspeed",
    )


def adam_w_mode() -> Any:
    """The setting that Adam has, on the device and on the host."""
    return setting(
        True,
        help="Decoupled weight decay (AdamW); false adds the decay to the gradient, as Adam's paper does.",
        origin="deepspeed",
    )


@frozen
class AdamSettings(AdamWSettings):
    adam_w_mode: bool = adam_w_mode()
