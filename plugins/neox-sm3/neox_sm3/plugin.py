"""Offers SM3."""

from attrs import frozen
from attrs import validators as v

from neox_core.api import Component, hookimpl, setting


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


@hookimpl
def neox_optimizers() -> list[Component]:
    return [
        Component(
            "SM3",
            "neox_sm3.optim:SM3",
            SM3Settings,
            summary="Adagrad in the memory of rows and columns (arXiv:1901.11150)",
            zero_stages=(0, 1),
            whole_parameters=True,
            precisions=("fp32", "bf16"),
            state_numbers=(0, 1),
            ops=(("sm3_step", "neox_sm3.optim:sm3_step"),),
        )
    ]
