"""A component that a plan names: what it is, how it is loaded, and whose fault it is when that fails."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
from attrs import evolve, field, frozen

from neox_core.errors import NeoxError, PluginError
from neox_core.hooks.component import cause_of, load_path, path_of
from neox_core.hooks.markers import ONE_FILE
from neox_core.untrusted import short, strict_converter, why

if TYPE_CHECKING:
    from neox_core.hooks.registry import Entry


@frozen
class ComponentRef:
    """A chosen component with its settings, ready to be imported by a rank.

    target, settings_class, planner: import paths of this environment's plugin, never of a file that was found
    somewhere; target "": of a component that was read and that this environment does not have. planner: of a kind that
    has a class for its part of the plan; None of others.
    """

    kind: str
    name: str
    plugin: str
    version: str
    target: str
    settings_class: str | None = None
    settings: dict[str, Any] = field(factory=dict)
    planner: str | None = None

    @property
    def owner(self) -> str:
        """Kind, name, plugin and version, for messages."""
        return short(f"{self.kind} {self.plugin}:{self.name} {self.version}")

    @property
    def identity(self) -> str:
        """What finds it again in another environment: kind, plugin and name."""
        return f"{self.kind} {self.plugin}:{self.name}"

    def plain(self) -> dict[str, Any]:
        """What it was made of, for a process that makes it again."""
        return {each.name: getattr(self, each.name) for each in attrs.fields(ComponentRef)}

    def load(self, settings: Any = None) -> tuple[Any, Any]:
        """(target, settings instance or None). Raises PluginError when one cannot be imported, or they do not fit.

        settings: the instance, where the caller has it.
        """
        if not self.target:
            raise PluginError(f"{self.owner}: is not installed here", hint=f"install {self.plugin} {self.version}")
        try:
            target = load_path(self.target)
            settings_class = None if self.settings_class is None else load_path(self.settings_class)
        except PluginError as error:
            gone = getattr(error.__cause__, "name", None) == self.target.partition(":")[0].partition(".")[0]
            hint = f"install {self.plugin} {self.version}" if gone else "`neox plugins check` tries all imports"
            if gone and self.version.startswith(ONE_FILE):
                hint = "--plugins-dir needs one cache folder for all hosts: set XDG_CACHE_HOME to a shared one"
            raise PluginError(f"{self.owner}: {error.message}", hint=hint) from error
        return target, self._settings(settings_class) if settings is None else settings

    def _settings(self, settings_class: type | None) -> Any:
        if settings_class is None and not self.settings:
            return None
        try:
            if settings_class is None:
                raise ValueError(f"it has none, and is given {', '.join(self.settings)}")
            return strict_converter().structure(self.settings, settings_class)
        except Exception as error:  # a check of the class may raise anything
            hint = f"another version of {self.plugin} may have written them"
            raise PluginError(f"{self.owner}: not its settings: {why(error)}", hint=hint) from error

    def make(self, *args: Any, settings: Any = None, **named: Any) -> Any:
        """Call the target with `args` and the settings. Raises PluginError if loading or the call fails."""
        target, settings = self.load(settings)
        with self.blamed():
            return target(*args, settings, **named)

    def fault(self, message: str) -> PluginError:
        """That the component does not do what its contract says."""
        return PluginError(f"{self.owner}: {message}", hint=f"tell the author of {self.plugin}")

    @contextmanager
    def blamed(self, clause: str = "") -> Iterator[None]:
        """What the component's code raises inside the block names it: PluginError, unless it is a NeoxError.

        clause: of its contract, a method and what it does, for the message.
        """
        try:
            yield
        except NeoxError:
            raise
        except (Exception, SystemExit) as error:
            hint = f"tell the author of {self.plugin}; `neox --debug` shows the traceback"
            where = f" in {clause}" if clause else ""
            raise PluginError(f"{self.owner} failed{where}: {cause_of(error, self.target)}", hint=hint) from error


def offered(entry: "Entry") -> ComponentRef:
    """An offer as a plan names it, without settings."""
    component, plugin = entry.component, entry.plugin
    settings = path_of(component.settings) if component.settings is not None else None
    planner = component.planner if entry.definition.plans else None
    return ComponentRef(
        entry.kind, component.name, plugin.id, plugin.version, component.target, settings, planner=planner
    )


@frozen
class _Noted(ComponentRef):
    """A component whose loading is noted, by its identity."""

    ledger: set[str] = field(kw_only=True, eq=False, repr=False)

    def load(self, settings: Any = None) -> tuple[Any, Any]:
        self.ledger.add(self.identity)
        return ComponentRef.load(self, settings)


def noting(plan: Any, ledger: set[str]) -> Any:
    """The same plan, whose components note in `ledger` that they are loaded."""
    return with_components(plan, lambda each: _Noted(**each.plain(), ledger=ledger))


def components_of(value: Any) -> Iterator[ComponentRef]:
    """Every component of a plan, or of a part of it."""
    if isinstance(value, ComponentRef):
        yield value
    elif attrs.has(type(value)):
        for each in attrs.fields(type(value)):
            yield from components_of(getattr(value, each.name))
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from components_of(inner)


def with_components(value: Any, change: Callable[[ComponentRef], ComponentRef]) -> Any:
    """A plan, or a part of it, with each component changed."""
    if isinstance(value, ComponentRef):
        return change(value)
    if attrs.has(type(value)):
        names = (each.name for each in attrs.fields(type(value)))
        return evolve(value, **{name: with_components(getattr(value, name), change) for name in names})
    if isinstance(value, tuple):
        return tuple(with_components(each, change) for each in value)
    if isinstance(value, dict):
        return {key: with_components(each, change) for key, each in value.items()}
    return value


def unknown(component: ComponentRef) -> ComponentRef:
    """A component of an untrusted file: it cannot be loaded."""
    return evolve(component, target="", settings_class=None, planner=None)
