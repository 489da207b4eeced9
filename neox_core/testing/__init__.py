"""What plugin authors test with.

Each check takes a catalogue of the plugin, the component's name and its settings:

    catalog = load_only("neox-lion")
    check_optimizer(catalog, "Lion", lr=0.05)

A check raises AssertionError with the clause of the contract that does not hold. Importing this package is light; a
check that needs torch imports it when it is taken.
"""

from importlib import import_module
from typing import Any

from neox_core import old_paths

_HOME = {
    "assert_light": "plugins",
    "build": "plugins",
    "load_only": "plugins",
    "check_launcher": "launchers",
    "example_plan": "plans",
    "check_lr_schedule": "schedules",
    "check_scheduler": "schedules",
    "check_optimizer": "optimizers",
    "check_data_backend": "data",
    "check_tokenizer": "tokenizers",
    "check_monitor": "monitors",
    "check_objective": "objectives",
}

__all__ = sorted(_HOME)  # noqa: PLE0605


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        return old_paths.moved(__name__, name)
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
