"""The settings of SM3."""

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting


@frozen
class SM3Settings:
    lr: float = setting(0.1, help="Peak learning rate.", check=v.ge(0), origin="deepspeed")
    momentum: float = setting(
        0.0,
        help="Weight of the previous step in the next one; above 0 the state has a number for each element.",
        check=v.and_(v.ge(0), v.lt(1)),
        origin="deepspeed",
    )
    beta: float = setting(
        0.0,
        help="Decay rate of the squared gradients; 0 adds them up, as the paper does.",
        check=v.and_(v.ge(0), v.lt(1)),
        origin="deepspeed",
    )
    eps: float = setting(1e-30, help="Added to the sum of squares under the root.", check=v.gt(0), origin="deepspeed")
    weight_decay: float = setting(
        0.0, help="Decoupled decay, except for parameters that are declared to have none.", check=v.ge(0)
    )
    fused: bool = setting(
        True,
        help="On a CPU, step a matrix in one pass by compiled code where there is a compiler; false: by torch.",
        changes="speed",
    )
