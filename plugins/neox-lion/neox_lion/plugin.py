"""Offers Lion."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_optimizers() -> list[Component]:
    return [
        Component(
            "Lion",
            "neox_lion.optim:Lion",
            "neox_lion.settings:LionSettings",
            summary="Sign of momentum (arXiv:2302.06675), in one pass over memory",
            zero_stages=(0, 1, 2, 3),
            state_numbers=(1, 0),
        )
    ]
