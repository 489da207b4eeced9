"""Offers Adam and AdamW."""

from neox_adam.settings import AdamSettings, AdamWSettings
from neox_core.api import Component, hookimpl


@hookimpl
def neox_optimizers() -> list[Component]:
    return [
        Component(
            "Adam",
            "neox_adam.optim:adam",
            AdamSettings,
            summary="Adam (arXiv:1412.6980), with decoupled weight decay unless adam_w_mode is false",
            zero_stages=(0, 1, 2, 3),
        ),
        Component(
            "AdamW",
            "neox_adam.optim:adamw",
            AdamWSettings,
            summary="Adam with decoupled weight decay (arXiv:1711.05101)",
            zero_stages=(0, 1, 2, 3),
        ),
    ]
