"""The two marks. Plugins import `hookimpl` through `neox_core.api`; only the core declares specs."""

import pluggy

PROJECT = "neox"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
