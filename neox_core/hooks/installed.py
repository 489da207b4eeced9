"""The installed plugins, by their entry points, and what watches over their listing."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib.metadata import Distribution, EntryPoint

from attrs import field, frozen

from neox_core.errors import PluginError
from neox_core.hooks.registry import PluginInfo, normalise

API = "1"
WATCH = "neox.watch"
"""The group of the entry point of a package that watches over a listing: makes a context manager of a `Watch`."""


@frozen
class Plugin:
    """One distribution and its entry points of our group, sorted."""

    id: str
    version: str
    keywords: str | None
    points: list[EntryPoint] = field(factory=list)

    def info(self, point: EntryPoint) -> PluginInfo:
        """The source of what an entry point offers."""
        return PluginInfo(self.id, self.version, point.value.partition(":")[0].strip())

    def packages(self) -> set[str]:
        """The names of the top-level packages of the listing modules."""
        return {self.info(point).module.partition(".")[0] for point in self.points}


def plugins_of(points: Iterable[EntryPoint]) -> list[Plugin]:
    """The plugins of entry points, each once, sorted by id."""
    plugins: dict[str, Plugin] = {}
    read: dict[Distribution, Plugin] = {}  # each access parses the metadata of a distribution
    for point in sorted(points, key=lambda point: (point.name, point.value)):
        plugin = read.get(point.dist) if point.dist else None
        if plugin is None:
            plugin = _identify(point)
            if point.dist:
                read[point.dist] = plugin
        plugin = plugins.setdefault(plugin.id, plugin)
        if not any((point.name, point.value) == (known.name, known.value) for known in plugin.points):
            plugin.points.append(point)  # a folder that is twice on sys.path lists its distributions twice
    return [plugin for _, plugin in sorted(plugins.items())]


def _identify(point: EntryPoint) -> Plugin:
    """An entry point without a distribution comes from a test: its name is the id, and it has this core's API."""
    if point.dist is None:
        return Plugin(normalise(point.name), "unknown", f"neox-api-{API}")
    text = point.dist.read_text("METADATA")
    metadata = point.dist.metadata if text is None else _head_of(text)
    return Plugin(normalise(metadata["Name"] or point.name), metadata["Version"] or "unknown", metadata["Keywords"])


def _head_of(text: str) -> dict[str, str]:
    """The fields before the README, each where it stands first; the parser of mails takes ten times as long."""
    fields = {"Name": "", "Version": "", "Keywords": ""}
    for line in text.partition("\n\n")[0].splitlines():
        name, _, value = line.partition(": ")
        fields[name] = fields.get(name) or value
    return fields


def wrong_api(plugin: Plugin) -> str:
    """Why the plugin does not fit this core; "" where it does."""
    keywords = (plugin.keywords or "").replace(",", " ").split()
    declared = [word.removeprefix("neox-api-") for word in keywords if word.startswith("neox-api-")]
    if API in declared:
        return ""
    if not declared:
        return f'declares no plugin api; add keywords = ["neox-api-{API}"] to [project] in its pyproject.toml'
    return f"is made for plugin api {', '.join(declared)}; this core has api {API}"


class Watch:
    """Knows plugins that have hung or ended a process which listed them. This one knows none."""

    def begin(self, plugin: Plugin) -> None:
        """This process now lists the plugin."""

    def fault(self, plugin: Plugin, *, again: bool) -> PluginError | None:
        """Why the plugin must not be listed here. again: try it, whatever is remembered."""

    def slow(self, plugin: Plugin) -> None:
        """The plugin was not listed in time."""


def watch_of(points: Iterable[EntryPoint], off: Mapping[str, str]) -> AbstractContextManager[Watch]:
    """The watch of the first installed package that has one; one that knows nothing if none has."""
    for point in points:
        with suppress(Exception):  # the report of its package has the cause
            if point.dist is not None and normalise(point.dist.name) not in off:
                made: AbstractContextManager[Watch] = point.load()()
                return made
    return nullcontext(Watch())
