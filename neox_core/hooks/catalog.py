"""What this environment offers, and the status of each plugin."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Literal

import pluggy
from attrs import field, frozen

from neox_core.errors import NeoxError, PluginError
from neox_core.hooks.blame import cause_of
from neox_core.hooks.install import how_to_install
from neox_core.hooks.registry import Entry, PluginInfo, Registry, UnknownComponentError, normalise
from neox_core.hooks.switches import VARIABLE, misspelt

Status = Literal["ok", "broken", "disabled", "incompatible"]


@frozen
class Report:
    """The status of one plugin."""

    plugin: PluginInfo
    status: Status
    error: BaseException | None = None

    @property
    def cause(self) -> str:
        """The reason of a failure in one line; "" for a plugin that works."""
        if self.error is None:
            return ""
        if isinstance(self.error, NeoxError):
            return " ".join(self.error.message.split())
        if isinstance(self.error, SystemExit):
            return f"calls sys.exit({self.error.code!r}) while it is being listed"
        return cause_of(self.error, self.plugin.module)

    @property
    def hint(self) -> str:
        """What a user can do about a failure; "" for a plugin that works."""
        if isinstance(self.error, NeoxError) and self.error.hint:
            return self.error.hint
        if isinstance(self.error, ModuleNotFoundError) and self.error.name:
            return f"install {self.error.name.partition('.')[0]}"
        if self.status == "incompatible":
            return f"try another version of {self.plugin.id}: {how_to_install(self.plugin.id)}"
        if self.status == "broken":
            return f"tell the author of {self.plugin.id}; NEOX_PLUGINS_DISABLE={self.plugin.id} switches it off"
        return ""

    @property
    def line(self) -> str:
        """Plugin, version, status and cause."""
        return f"{self.plugin.id} {self.plugin.version} is {self.status}: {self.cause}"


@frozen
class Catalog:
    """All plugins of this environment: their offers, and the status of each. off: plugin id -> what switches it off."""

    manager: pluggy.PluginManager
    registry: Registry
    reports: tuple[Report, ...]
    off: Mapping[str, str] = field(factory=dict)

    def report(self, plugin: str) -> Report | None:
        """The status of a plugin, by its name in any spelling; None of one that is not installed."""
        return next((report for report in self.reports if report.plugin.id == normalise(plugin)), None)

    def failed(self) -> tuple[Report, ...]:
        """The broken and the incompatible plugins."""
        return tuple(report for report in self.reports if report.status in ("broken", "incompatible"))

    def misnamed(self) -> Iterator[tuple[str, str]]:
        """(message, hint) for each name that is switched off and that no installed plugin has, and each `misspelt`."""
        yield from ((f"{name} is set, which neox does not read", f"did you mean {VARIABLE}?") for name in misspelt())
        ids = [report.plugin.id for report in self.reports]
        for name, switch in sorted(self.off.items()):
            if name not in ids:
                near = get_close_matches(name, ids, 1)
                hint = f"did you mean {near[0]!r}?" if near else "`neox plugins list` shows the plugins"
                yield f"{switch} switches off {name}, which is not installed", hint

    def warnings(self) -> tuple[str, ...]:
        """One line for each failed plugin, for commands that do not need it, and for each of `misnamed`."""
        failed = (f"plugin {report.line}" for report in self.failed())
        return (*failed, *(f"{said}; {hint}" for said, hint in self.misnamed()))

    def find(self, kind: str, use: str) -> Entry:
        """The offer that `use` names, as `Registry.find`.

        Raises PluginError; when no plugin offers the name, it names those that could not be loaded, with their causes.
        """
        owner, _, _ = use.rpartition(":")
        report = self.report(owner) if owner else None
        if report is not None and report.status != "ok":
            raise PluginError(f"{kind} {use!r}: plugin {report.line}", hint=report.hint)
        try:
            return self.registry.find(kind, use)
        except UnknownComponentError as error:
            suspects = [report for report in self.reports if report.status != "ok"]
            if not suspects:
                raise
            lines = "; ".join(f"plugin {report.line}" for report in suspects)
            said = f"{error.message}; not loaded, and may offer it: {lines}"
            raise UnknownComponentError(said, hint=error.hint) from None

    def require(self, ids: Iterable[str]) -> None:
        """Raises one PluginError that lists every plugin of `ids` that is missing or not ok, with its cause."""
        faults, hints = [], []
        for name in ids:
            if (report := self.report(name)) is None:
                faults.append(f"plugin {normalise(name)} is required and not installed")
                hints.append(how_to_install(name))
            elif report.status != "ok":
                faults.append(f"plugin {report.line}, and is required")
                hints.append(report.hint)
        if faults:
            raise PluginError("\n".join(faults), hint="; ".join(dict.fromkeys(hint for hint in hints if hint)))
