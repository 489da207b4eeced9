"""The settings of Lion."""

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting


@frozen
class LionSettings:
    lr: float = setting(
        1e-4, help="Peak learning rate, a third to a tenth of Adam's.", check=v.ge(0), origin="deepspeed"
    )
    betas: tuple[float, float] = setting(
        (0.9, 0.99),
        help="Weights of the buffer in the step and in its own decay.",
        check=v.deep_iterable(v.and_(v.ge(0), v.lt(1))),
        origin="deepspeed",
    )
    weight_decay: float = setting(
        0.0,
        help="Decoupled decay, except for parameters that are declared to have none.",
        check=v.ge(0),
        origin="deepspeed",
    )
    fused: bool = setting(
        True,
        help="On a CPU, step in one pass by compiled code where there is a compiler; false: by torch.",
        changes="speed",
    )
