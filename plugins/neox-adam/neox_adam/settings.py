"""What can be set under optimizer.params."""

from typing import Any

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting


@frozen
class CPUTorchAdamSettings:
    lr: float = setting(1e-3, help="Peak learning rate.", check=v.ge(0), origin="deepspeed")
    betas: tuple[float, float] = setting(
        (0.9, 0.999),
        help="Decay rates of the first and second moment estimates.",
        check=v.deep_iterable(v.and_(v.ge(0), v.lt(1))),
        origin="deepspeed",
    )
    eps: float = setting(
        1e-8, help="Keeps the denominator of the update away from zero.", check=v.gt(0), origin="deepspeed"
    )
    weight_decay: float = setting(
        0.01,
        help="Weight decay of the parameters that do not declare themselves out of it.",
        check=v.ge(0),
        origin="deepspeed",
    )


@frozen
class AdamWSettings(CPUTorchAdamSettings):
    torch_adam: bool = setting(
        False,
        help="Use torch's plain implementation instead of the fused one: slower, same formula.",
        changes="speed",
        origin="deepspeed",
    )


def _adam_w_mode() -> Any:
    return setting(
        True,
        help="Decoupled weight decay (AdamW); false adds the decay to the gradient, as Adam's paper does.",
        origin="deepspeed",
    )


@frozen
class AdamSettings(AdamWSettings):
    adam_w_mode: bool = _adam_w_mode()


@frozen
class CPUAdamSettings(CPUTorchAdamSettings):
    adam_w_mode: bool = _adam_w_mode()
