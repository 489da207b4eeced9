"""Factors of gradients: their part of the plan, for every engine that has their keys, and what they may not name."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from neox_core.config.problem import Problem
from neox_core.config.schema.convert import shown
from neox_core.config.schema.structure import Config
from neox_core.contracts.architecture import ModelSize
from neox_core.plan.planners import architecture_planner
from neox_core.plan.runfile import RunPlan
from neox_plain.config.sections.gradients import GradientsSection

LISTS = ("gradient_norm_counts", "lr_scales")


def gradients_plan(config: Config) -> dict[str, Any]:
    """The factors that are not at rest, for `plan.engine`; none where the engine does not list the section."""
    if GradientsSection not in config.sections:
        return {}
    section = config.section(GradientsSection)
    found: dict[str, Any] = {} if section.gradient_scale == 1 else {"gradient_scale": section.gradient_scale}
    for key in LISTS:
        if factors := getattr(section, key):
            found[key] = [list(each) for each in factors]
    return found


def gradients_key(path: str) -> str | None:
    """The key that makes a value of `plan.engine`, where it is one of these."""
    return next((key for key in ("gradient_scale", *LISTS) if path == key or path.startswith(f"{key}.")), None)


def unmatched_factors(config: Config, plan: RunPlan) -> Iterator[Problem]:
    """Patterns that name no parameter. Where an architecture does not tell its parameters, a rank finds them."""
    asked = [(key, name) for key in LISTS for name, _ in plan.engine.get(key, [])]
    size = architecture_planner(config).size(config, plan.model) if asked else None
    if not isinstance(size, ModelSize):
        return
    for key, pattern in asked:
        if not any(fnmatchcase(name, pattern) for name in size.shapes):
            said = f"no parameter of the model has a name like {shown(pattern)}"
            yield config.problem(said, key, f"a name is such as {shown(list(size.shapes)[-1])}")
