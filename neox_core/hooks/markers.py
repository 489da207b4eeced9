"""The two marks, and the group of entry points. Plugins import `hookimpl` through `neox_core.api`."""

import pluggy

PROJECT = "neox"
GROUP = "neox.plugins"
"""The group of the entry points of plugins."""
ONE_FILE = "0+"
"""How the version of a plugin that is a file of `--plugins-dir` begins."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
