"""Everything that a plugin's listing module imports. It does not import torch."""

from neox_core.config.problem import Problem
from neox_core.config.schema.adam_settings import MomentSettings
from neox_core.config.schema.setting import setting
from neox_core.hooks.component import Component, ConfigSection
from neox_core.hooks.kinds import Kind
from neox_core.hooks.markers import hookimpl

__all__ = ["Component", "ConfigSection", "Kind", "MomentSettings", "Problem", "hookimpl", "setting"]
