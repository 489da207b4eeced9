"""The part of the plan that has factors of gradients, for every engine that has their keys."""

from typing import Any

from neox_core.config.schema.structure import Config
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
