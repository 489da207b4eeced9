"""What other packages may import of this one: its engine, what other engines derive from, and the keys and rules that
engines share; and parameters of which data-parallel ranks have different parts.

Listing an engine imports the keys alone; everything else is imported when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neox_plain.config.sections.gradients import GradientsSection
from neox_plain.config.sections.precision import PrecisionSection

if TYPE_CHECKING:
    from neox_plain.base_engine import BaseEngine
    from neox_plain.clip import copy_marks
    from neox_plain.config import batch_rules, checkpoint_rules, precision_rules
    from neox_plain.config.gradient_rules import gradients_key, gradients_plan, unmatched_factors
    from neox_plain.config.memory import Extra, expected_memory
    from neox_plain.config.precision_rules import enabled, left_off
    from neox_plain.criterion import Criterion
    from neox_plain.engine import Engine, build_engine
    from neox_plain.factors import plain_options, split_groups
    from neox_plain.gpu_peaks import PEAKS
    from neox_plain.maker import Plain
    from neox_plain.peak import find_peak
    from neox_plain.planner import PlainPlanner
    from neox_plain.spread import Spread, spread, spread_of

_LATER = {
    "PEAKS": "gpu_peaks:PEAKS",
    "BaseEngine": "base_engine:BaseEngine",
    "Criterion": "criterion:Criterion",
    "Engine": "engine:Engine",
    "Extra": "config.memory:Extra",
    "Plain": "maker:Plain",
    "PlainPlanner": "planner:PlainPlanner",
    "Spread": "spread:Spread",
    "build_engine": "engine:build_engine",
    "batch_rules": "planner:batch_rules",
    "checkpoint_rules": "planner:checkpoint_rules",
    "copy_marks": "clip:copy_marks",
    "enabled": "config.precision_rules:enabled",
    "expected_memory": "config.memory:expected_memory",
    "find_peak": "peak:find_peak",
    "gradients_key": "config.gradient_rules:gradients_key",
    "gradients_plan": "config.gradient_rules:gradients_plan",
    "left_off": "config.precision_rules:left_off",
    "plain_options": "factors:plain_options",
    "precision_rules": "planner:precision_rules",
    "split_groups": "factors:split_groups",
    "spread": "spread:spread",
    "spread_of": "spread:spread_of",
    "unmatched_factors": "config.gradient_rules:unmatched_factors",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _LATER[name].partition(":")
    return getattr(import_module(f"neox_plain.{module}"), attribute)


__all__ = [
    "PEAKS",
    "BaseEngine",
    "Criterion",
    "Engine",
    "Extra",
    "GradientsSection",
    "Plain",
    "PlainPlanner",
    "PrecisionSection",
    "Spread",
    "batch_rules",
    "build_engine",
    "checkpoint_rules",
    "copy_marks",
    "enabled",
    "expected_memory",
    "find_peak",
    "gradients_key",
    "gradients_plan",
    "left_off",
    "plain_options",
    "precision_rules",
    "split_groups",
    "spread",
    "spread_of",
    "unmatched_factors",
]
