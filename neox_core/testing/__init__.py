"""What the checks of each kind are written with, and what every test of a plugin needs.

The checks are in `neox_author.testing`, and those of the kinds of a plugin with that plugin. Importing this is light.
"""

from typing import Any

from neox_core import old_paths
from neox_core.testing.plans import example_plan
from neox_core.testing.plugins import assert_light, build, load_only

__all__ = ["assert_light", "build", "example_plan", "load_only"]


def __getattr__(name: str) -> Any:
    return old_paths.moved(__name__, name)
