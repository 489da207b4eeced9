"""Plugins that hang or end the process that lists them in ways that the core cannot refuse, such as a crash in C.

A process writes the plugin that it lists into a file of its own, which it locks, and removes at the end. When it
crashes, a process that it has forked before names the plugin. A file that is no longer locked, or is locked for too
long, names a suspect: another process then lists that plugin, within a time limit, and its result is remembered for a
while. The files are in the user's cache folder; where that cannot be written, nothing is detected. What is read there
is only compared with what is installed.
"""

import os
import signal
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from neox_core.errors import PluginError, report
from neox_core.files import cache_folder, lock, read_bytes, replacing
from neox_core.hooks.component import GROUP
from neox_core.hooks.guard import LISTING_S, kept_waiting
from neox_core.hooks.installed import Plugin, Watch
from neox_core.hooks.loader import load_plugins
from neox_core.hooks.registry import normalise
from neox_core.interpreter import python

SAID = {
    "slow": f"takes longer than {LISTING_S:g} s to be listed",
    "hung": "hangs the process that lists it",
    "died": "ends the process that lists it",
}
REMEMBERED_S = 600.0
TRIED_S = 2 * LISTING_S
_NOTE_BYTES = 512
_MOST_NOTES = 1000
_MOST_FILES = 2000
_LISTED = 83
"""The exit code of a process that finished listing a plugin."""


class Notes(Watch):
    """The note of this process, and those that earlier ones left behind."""

    def __init__(self, folder: Path, note: int) -> None:
        self._folder, self._note = folder, note
        self._left: dict[str, list[Path]] = defaultdict(list)
        self._verdicts: set[str] = set()
        with suppress(OSError):
            self._look_around()

    def begin(self, plugin: Plugin) -> None:
        with suppress(OSError):
            os.pwrite(self._note, _bytes_of(plugin.id).ljust(_NOTE_BYTES), 0)

    def fault(self, plugin: Plugin, *, again: bool) -> PluginError | None:
        if plugin.id not in self._left and _name(plugin.id) not in self._verdicts:
            return None
        verdict = "" if again else self._remembered(plugin)
        if not verdict:
            verdict = _try(plugin.id)
            self.remember(plugin, verdict)
        for note in self._left.pop(plugin.id, ()):
            with suppress(OSError):
                note.unlink()
        if not verdict:
            return None
        off = f"NEOX_PLUGINS_DISABLE={plugin.id} switches it off"
        return PluginError(SAID[verdict], hint=f"tell its author; {off}, `neox plugins check` tries it again")

    def slow(self, plugin: Plugin) -> None:
        self.remember(plugin, "slow")

    def remember(self, plugin: Plugin, verdict: str) -> None:
        """Remember a result. verdict: a key of SAID; "" for a plugin that can be listed."""
        place = self._folder / _name(plugin.id)
        with suppress(OSError):
            if verdict:
                with replacing(place) as new:
                    new.write_text(f"{verdict} {state_of(plugin)}", encoding="utf-8")
            else:
                place.unlink(missing_ok=True)

    def _remembered(self, plugin: Plugin) -> str:
        place = self._folder / _name(plugin.id)
        try:
            age = time.time() - place.stat().st_mtime
            verdict, _, of = read_bytes(place, _NOTE_BYTES).decode("utf-8", "replace").partition(" ")
        except OSError:
            return ""
        return verdict if verdict in SAID and of == state_of(plugin) and 0 <= age < REMEMBERED_S else ""

    def _look_around(self) -> None:
        with os.scandir(self._folder) as entries:
            for entry in islice(entries, _MOST_NOTES):
                if entry.name.startswith("verdict-"):
                    self._verdicts.add(entry.name)
                elif not os.path.samestat(entry.stat(follow_symlinks=False), os.fstat(self._note)):
                    with suppress(OSError):
                        plugin = _abandoned(Path(entry.path))
                        if plugin:
                            self._left[plugin].append(Path(entry.path))


@contextmanager
def watch() -> Iterator[Watch]:
    """Write notes while this process lists plugins."""
    try:
        folder = cache_folder() / "listing" / f"{zlib.crc32(os.fsencode(sys.prefix)):08x}"
        folder.mkdir(parents=True, exist_ok=True)
        mine = folder / f"process-{os.getpid()}-{time.time_ns()}"
        note = os.open(mine, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        yield Watch()
        return
    try:
        lock(note, wait=True)  # on a file system without locks every note looks abandoned, and its plugin is tried
        with _witness(mine, note):
            yield Notes(folder, note)
    finally:
        with suppress(OSError):
            mine.unlink()
        os.close(note)


@contextmanager
def _witness(mine: Path, note: int) -> Iterator[None]:
    """A second process, which reports the plugin in this one's note if this one is gone before it is done."""
    try:
        if len(list(Path("/proc/self/task").iterdir())) > 1:  # a copy of one thread may wait for a lock of another
            raise OSError
        reading, writing = os.pipe()
        child = os.fork()
    except OSError:  # also without memory: then the next command names the plugin
        yield
        return
    if not child:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.close(note)
            os.close(writing)
            if not os.read(reading, 1) and (plugin := _named_in(mine)):
                hint = f"unless you ended it, {plugin} did; NEOX_PLUGINS_DISABLE={plugin} switches it off"
                report(PluginError(f"this command was ended while it listed plugin {plugin}", hint=hint))
        finally:
            os._exit(0)
    os.close(reading)
    try:
        yield
    finally:
        with suppress(OSError):
            os.write(writing, b".")
            os.close(writing)
            os.waitpid(child, 0)


def _named_in(note: Path) -> str:
    return read_bytes(note, _NOTE_BYTES).decode("utf-8", "replace").strip()


def _abandoned(note: Path) -> str:
    """The plugin that a note names, if the process that wrote it is gone, or has taken too long; else ""."""
    age = time.time() - note.lstat().st_mtime
    file = os.open(note, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        gone = lock(file, required=True)
    finally:
        os.close(file)
    plugin = _named_in(note)
    if gone and (age > REMEMBERED_S or (not plugin and age > TRIED_S)):
        note.unlink()
        return ""
    return plugin if gone or age > TRIED_S else ""


def _try(plugin: str) -> str:
    """List a plugin in another process: a key of SAID, or "" when the listing finished."""
    import subprocess  # 5 ms, for a suspect only

    nowhere = subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            python(__name__, plugin), stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
        )
    except (OSError, ValueError):
        return ""
    began, rest = time.monotonic(), TRIED_S
    try:
        while rest > 0:
            with suppress(subprocess.TimeoutExpired):
                return "" if process.wait(rest) == _LISTED else "died"
            rest = TRIED_S + kept_waiting(str(process.pid)) - (time.monotonic() - began)
        return "hung"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def state_of(plugin: Plugin) -> str:
    """A digest that changes with the version of the plugin and with the files of its packages."""
    import hashlib  # 10 ms, for a suspect only

    known = hashlib.sha256(f"{plugin.id} {plugin.version}".encode("utf-8", "replace"))
    for package in sorted(plugin.packages()):
        spec = find_spec(package) if package.isidentifier() else None
        folders = [*map(Path, (spec.submodule_search_locations if spec else None) or ())]
        module = [Path(spec.origin)] if spec and spec.origin and not folders else []
        for file in islice((*module, *(each for folder in folders for each in folder.rglob("*.py"))), _MOST_FILES):
            with suppress(OSError):
                known.update(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}".encode("utf-8", "replace"))
    return known.hexdigest()


def _name(plugin: str) -> str:
    return f"verdict-{zlib.crc32(_bytes_of(plugin)):08x}"


def _bytes_of(plugin: str) -> bytes:
    return plugin.encode("utf-8", "replace")[:_NOTE_BYTES]


def main() -> None:
    """`python -m neox_author.suspects ID`: list one plugin."""
    wanted = [point for point in entry_points(group=GROUP) if point.dist and normalise(point.dist.name) == sys.argv[1]]
    load_plugins(wanted)
    os._exit(_LISTED)


if __name__ == "__main__":
    main()
