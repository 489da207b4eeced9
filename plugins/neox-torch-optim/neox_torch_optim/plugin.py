"""Offers the optimizers of torch.optim that work on each number by itself."""

from neox_core.api import Component, hookimpl
from neox_torch_optim.settings import (
    AdadeltaSettings,
    AdagradSettings,
    AdamaxSettings,
    NAdamSettings,
    RAdamSettings,
    RMSpropSettings,
    SGDSettings,
)


def _offer(name: str, settings: type, numbers: float, summary: str) -> Component:
    target = f"neox_torch_optim.optim:{name.lower()}"
    return Component(name, target, settings, summary=summary, zero_stages=(0, 1, 2, 3), state_numbers=(numbers, 0))


@hookimpl
def neox_optimizers() -> list[Component]:
    return [
        _offer("SGD", SGDSettings, 0, "Gradient descent, with momentum on request (Polyak 1964)"),
        _offer("Adagrad", AdagradSettings, 1, "Steps by the sum of squares (Duchi et al. 2011)"),
        _offer("RMSprop", RMSpropSettings, 1, "Steps by the mean of squares (Hinton 2012)"),
        _offer("Adadelta", AdadeltaSettings, 2, "Steps by the ratio of two means of squares (arXiv:1212.5701)"),
        _offer("Adamax", AdamaxSettings, 2, "Adam by the largest gradient (arXiv:1412.6980, section 7)"),
        _offer("NAdam", NAdamSettings, 2, "Adam that looks ahead (Dozat 2016)"),
        _offer("RAdam", RAdamSettings, 2, "Adam that begins with its spread unknown (arXiv:1908.03265)"),
    ]
