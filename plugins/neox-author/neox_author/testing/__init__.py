"""What authors of plugins test with: loading one plugin, and a check for each kind of component of the core.

Each check takes a catalogue of the plugin, the component's name and its settings:

    catalog = load_only("neox-lion")
    check_optimizer(catalog, "Lion", lr=0.05)

A check raises AssertionError with the clause of the contract that does not hold. Importing this package is light; a
check that needs torch imports it when it is taken. The checks of the kinds of a plugin are with that plugin.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "Reading": "model_clauses",
    "assert_light": "plugins",
    "build": "plugins",
    "check_architecture": "architectures",
    "check_callback": "callbacks",
    "check_command": "console",
    "check_curriculum": "curricula",
    "check_data_backend": "data",
    "check_dialect": "dialects",
    "check_engine": "engines",
    "check_evaluator": "evaluators",
    "check_kernel": "kernels",
    "check_launcher": "launchers",
    "check_lr_schedule": "schedules",
    "check_monitor": "monitors",
    "check_objective": "objectives",
    "check_optimizer": "optimizers",
    "check_scheduler": "schedules",
    "check_store": "stores",
    "check_tokenizer": "tokenizers",
    "example_plan": "plans",
    "load_only": "plugins",
}

__all__ = sorted(_HOME)  # noqa: PLE0605


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
