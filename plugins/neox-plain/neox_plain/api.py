"""What other packages may import of this one: its engine, what an engine of another library derives from, and the keys
and rules of precision, which the host reads: so what imports torch is imported when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neox_plain.config import precision_rules
from neox_plain.config.sections.precision import PrecisionSection

if TYPE_CHECKING:
    from neox_plain.base_engine import BaseEngine, plain_options
    from neox_plain.clip import copy_marks
    from neox_plain.engine import Engine, build_engine
    from neox_plain.token_weights import token_weights

_IN_RANKS = {
    "BaseEngine": "base_engine",
    "Engine": "engine",
    "build_engine": "engine",
    "copy_marks": "clip",
    "plain_options": "base_engine",
    "token_weights": "token_weights",
}


def __getattr__(name: str) -> Any:
    if name not in _IN_RANKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"neox_plain.{_IN_RANKS[name]}"), name)


__all__ = [
    "BaseEngine",
    "Engine",
    "PrecisionSection",
    "build_engine",
    "copy_marks",
    "plain_options",
    "precision_rules",
    "token_weights",
]
