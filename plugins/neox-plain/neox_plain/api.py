"""What other packages may import of this one: its engine, what an engine of another library derives from, and the keys
and rules of precision.

Listing an engine imports the keys alone; everything else is imported when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neox_plain.config.sections.precision import PrecisionSection

if TYPE_CHECKING:
    from neox_plain.base_engine import BaseEngine, plain_options
    from neox_plain.clip import copy_marks
    from neox_plain.config import precision_rules
    from neox_plain.config.memory import expected_memory
    from neox_plain.engine import Engine, build_engine
    from neox_plain.peak import find_peak

_LATER = {
    "BaseEngine": "base_engine:BaseEngine",
    "Engine": "engine:Engine",
    "build_engine": "engine:build_engine",
    "copy_marks": "clip:copy_marks",
    "expected_memory": "config.memory:expected_memory",
    "find_peak": "peak:find_peak",
    "plain_options": "base_engine:plain_options",
    "precision_rules": "planner:precision_rules",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _LATER[name].partition(":")
    return getattr(import_module(f"neox_plain.{module}"), attribute)


__all__ = [
    "BaseEngine",
    "Engine",
    "PrecisionSection",
    "build_engine",
    "copy_marks",
    "expected_memory",
    "find_peak",
    "plain_options",
    "precision_rules",
]
