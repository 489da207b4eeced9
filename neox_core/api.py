"""Everything that a plugin's listing module imports. It does not import torch."""

from neox_core.config.problem import Problem
from neox_core.config.schema.adam_settings import MomentSettings
from neox_core.config.schema.setting import setting
from neox_core.hooks.component import Component, ConfigSection
from neox_core.hooks.kinds import Kind
from neox_core.hooks.markers import hookimpl
from neox_core.hooks.spellings import Assumed, Gone, Means, Moved, OlderSpelling

__all__ = [
    "Assumed",
    "Component",
    "ConfigSection",
    "Gone",
    "Kind",
    "Means",
    "MomentSettings",
    "Moved",
    "OlderSpelling",
    "Problem",
    "hookimpl",
    "setting",
]
