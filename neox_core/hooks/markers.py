"""The two marks, and the group of entry points. Plugins import `hookimpl` through `neox_core.api`."""

import pluggy

PROJECT = "neox"
GROUP = "neox.plugins"
"""The group of the entry points of plugins."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
