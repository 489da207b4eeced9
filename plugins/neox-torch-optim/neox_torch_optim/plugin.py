"""Offers the optimizers of torch.optim that work on each number by itself."""

from neox_core.api import Component, hookimpl


def _offer(name: str, numbers: float, summary: str) -> Component:
    target = f"neox_torch_optim.optim:{name.lower()}"
    settings = f"neox_torch_optim.settings:{name}Settings"
    return Component(name, target, settings, summary=summary, zero_stages=(0, 1, 2, 3), state_numbers=(numbers, 0))


@hookimpl
def neox_optimizers() -> list[Component]:
    return [
        _offer("SGD", 0, "Gradient descent, with momentum on request (Polyak 1964)"),
        _offer("Adagrad", 1, "Steps by the sum of squares (Duchi et al. 2011)"),
        _offer("RMSprop", 1, "Steps by the mean of squares (Hinton 2012)"),
        _offer("Adadelta", 2, "Steps by the ratio of two means of squares (arXiv:1212.5701)"),
        _offer("Adamax", 2, "Adam by the largest gradient (arXiv:1412.6980, section 7)"),
        _offer("NAdam", 2, "Adam that looks ahead (Dozat 2016)"),
        _offer("RAdam", 2, "Adam that begins with its spread unknown (arXiv:1908.03265)"),
    ]
