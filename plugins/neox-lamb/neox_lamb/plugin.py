"""Offers Lamb."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_optimizers() -> list[Component]:
    return [
        Component(
            "Lamb",
            "neox_lamb.optim:Lamb",
            "neox_lamb.settings:LambSettings",
            summary="Adam with a trust ratio for each parameter, for large batches (arXiv:1904.00962)",
            zero_stages=(0, 1),
            whole_parameters=True,
            state_numbers=(2, 0),
        )
    ]
