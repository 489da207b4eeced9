"""Where API 1 had the kit for tests of plugins. `old_paths` knows where each of its names is today."""

from typing import Any

from neox_core import old_paths


def __getattr__(name: str) -> Any:
    return old_paths.moved(__name__, name)
