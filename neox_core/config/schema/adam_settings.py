"""The settings that optimizers with Adam's two moments share."""

from attrs import frozen
from attrs import validators as v

from neox_core.config.schema.setting import setting


@frozen
class MomentSettings:
    """Base class for the settings of such an optimizer. The names are DeepSpeed's, the defaults AdamW's."""

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
        help="Weight decay, except for parameters that are declared to have none.",
        check=v.ge(0),
        origin="deepspeed",
    )
