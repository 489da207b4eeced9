"""What the plugin offers. Imported whenever plugins are listed, so it imports no torch."""

from attrs import frozen
from attrs import validators as v

from neox_core.api import Component, hookimpl, setting


@frozen
class LionSettings:
    lr: float = setting(1e-4, help="Peak learning rate.", check=v.gt(0))
    betas: tuple[float, float] = setting(
        (0.9, 0.99),
        help="Weights of the buffer in the step and in its own decay.",
        check=v.deep_iterable(v.and_(v.ge(0), v.lt(1))),
    )
    weight_decay: float = setting(0.0, help="Decoupled decay.", check=v.ge(0))


@hookimpl
def neox_optimizers() -> list[Component]:
    summary = "Sign of momentum (arXiv:2302.06675)"
    return [Component("ExampleLion", "neox_example_lion.optim:Lion", LionSettings, summary, zero_stages=(0, 1))]
