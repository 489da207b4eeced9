"""What can be set under optimizer.params: torch's names and defaults."""

from typing import Any

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting

_SHARE = v.and_(v.ge(0), v.lt(1))


def _lr(default: float) -> Any:
    return setting(default, help="Peak learning rate.", check=v.ge(0), origin="deepspeed")


def _eps(default: float) -> Any:
    return setting(default, help="Keeps a denominator away from zero.", check=v.ge(0), origin="deepspeed")


@frozen
class _Decaying:
    weight_decay: float = setting(
        0.0,
        help="Weight decay of the parameters that do not declare themselves out of it, added to their gradient.",
        check=v.ge(0),
        origin="deepspeed",
    )


@frozen
class _Moments(_Decaying):
    betas: tuple[float, float] = setting(
        (0.9, 0.999),
        help="Decay rates of the first and second moment estimates.",
        check=v.deep_iterable(_SHARE),
        origin="deepspeed",
    )
    eps: float = _eps(1e-8)


@frozen
class _Decoupling(_Moments):
    decoupled_weight_decay: bool = setting(False, help="Shrink the weight by the decay, as AdamW does, instead.")


@frozen
class SGDSettings(_Decaying):
    lr: float = _lr(1e-3)
    momentum: float = setting(0.0, help="Weight of the steps before in a step.", check=v.ge(0))
    dampening: float = setting(0.0, help="Share of the gradient that momentum leaves out.")
    nesterov: bool = setting(False, help="Look ahead along the momentum; needs momentum, and no dampening.")

    def __attrs_post_init__(self) -> None:
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise ValueError("nesterov needs momentum above 0, and dampening 0")


@frozen
class AdagradSettings(_Decaying):
    lr: float = _lr(1e-2)
    lr_decay: float = setting(0.0, help="The rate falls as 1 / (1 + steps x this).", check=v.ge(0))
    initial_accumulator_value: float = setting(0.0, help="Sum of squares at the start.", check=v.ge(0))
    eps: float = _eps(1e-10)


@frozen
class RMSpropSettings(_Decaying):
    lr: float = _lr(1e-2)
    alpha: float = setting(0.99, help="Decay rate of the mean of squares.", check=v.ge(0))
    eps: float = _eps(1e-8)
    momentum: float = setting(0.0, help="Weight of the steps before in a step.", check=v.ge(0))
    centered: bool = setting(False, help="Divide by the spread of the gradient instead of its size.")


@frozen
class AdadeltaSettings(_Decaying):
    lr: float = _lr(1.0)
    rho: float = setting(0.9, help="Decay rate of the means of squares.", check=v.and_(v.ge(0), v.le(1)))
    eps: float = _eps(1e-6)


@frozen
class AdamaxSettings(_Moments):
    lr: float = _lr(2e-3)


@frozen
class NAdamSettings(_Decoupling):
    lr: float = _lr(2e-3)
    momentum_decay: float = setting(4e-3, help="How fast the momentum comes to its full weight.", check=v.ge(0))


@frozen
class RAdamSettings(_Decoupling):
    lr: float = _lr(1e-3)
