"""Whose fault an exception is: its cause in one line, and the plugin whose code raised it."""

import os
import traceback
from importlib.metadata import entry_points
from traceback import walk_tb
from types import FrameType

from attrs import Attribute

from neox_core.errors import PluginError
from neox_core.hooks.markers import GROUP
from neox_core.terminal import echo


def cause_of(error: BaseException, path: str) -> str:
    """An exception in one line, with its position in the package of the import path `path`, if it was raised there."""
    # otherwise the message shows attrs' internals
    of_attrs = len(error.args) > 1 and isinstance(error.args[1], Attribute)
    said = " ".join(f"{type(error).__name__}: {error.args[0] if of_attrs else error}".split())
    place = place_of(error, path)
    return f"{said} ({place})" if place else said


def place_of(error: BaseException, path: str) -> str:
    """The last module and line of the package of `path` in an error's traceback; "" when the package is not in it."""
    package = path.partition(":")[0].partition(".")[0]
    modules = [(frame.f_globals.get("__name__", ""), line) for frame, line in walk_tb(error.__traceback__)]
    places = [f"{name}, line {line}" for name, line in modules if name.partition(".")[0] == package]
    return places[-1] if places else ""


def culprit_of(error: BaseException, module: str = "") -> str:
    """The plugin whose code is last in the traceback of an error, with version, position and what was called of it.

    "" where there is none.

    module: a module that was run, and is to blame where no plugin is in the traceback.
    """
    owners = {point.module.partition(".")[0]: point.dist for point in entry_points(group=GROUP) if point.dist}
    found, before, called = "", None, ""
    for frame, line in walk_tb(error.__traceback__):
        name: str = frame.f_globals.get("__name__", "")
        package = name.partition(".")[0]
        called = called if package == before else _called(frame)
        if owner := owners.get(package):
            found = f"{owner.name} {owner.version}: {name}, line {line}{called}"
        before = package
    if found:
        return found
    owner = owners.get(module.partition(".")[0])
    return f"{owner.name} {owner.version}: {module}" if owner else ""


def _called(frame: FrameType) -> str:
    """For a message: what was called, a function, or a component's class and the method of its contract."""
    own, name = frame.f_locals.get("self"), frame.f_code.co_name
    return "" if name == "<module>" else f", in {name if own is None else f'{type(own).__name__}.{name}'}"


def blame(error: BaseException, module: str = "") -> PluginError | None:
    """An exception of a plugin's code as an error that names the plugin; None where no plugin is in the traceback.

    module: as for `culprit_of`.
    """
    culprit = culprit_of(error, module)
    if not culprit:
        return None
    said = " ".join(f"{type(error).__name__}: {error}".split())
    hint = f"tell the author of {culprit.partition(' ')[0]}; `neox --debug` shows the traceback"
    return PluginError(f"{said} (in {culprit})", hint=hint)


def show_traceback(error: BaseException) -> None:
    """With `--debug`: print the traceback of an exception of a plugin's code on stderr, for its author."""
    if os.environ.get("NEOX_DEBUG") == "1":
        echo("".join(traceback.format_exception(error)), err=True, end="")
