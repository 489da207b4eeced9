"""Offers SM3."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_optimizers() -> list[Component]:
    return [
        Component(
            "SM3",
            "neox_sm3.optim:SM3",
            "neox_sm3.settings:SM3Settings",
            summary="Adagrad in the memory of rows and columns (arXiv:1901.11150)",
            zero_stages=(0, 1),
            whole_parameters=True,
            precisions=("fp32", "bf16"),
            state_numbers=(0, 1),
            ops=(("sm3_step", "neox_sm3.optim:sm3_step"),),
        )
    ]
