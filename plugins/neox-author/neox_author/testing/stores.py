"""The check of a store: whole objects, complete listings, and nothing that is old."""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_author.testing.clauses import check_light, clauses, has, hold, not_applicable
from neox_author.testing.plugins import build

if TYPE_CHECKING:
    from neox_core.contracts.store import Store
    from neox_core.hooks.catalog import Catalog

PLACE = "NEOX_STORE_PLACE"
"""In the environment: the address of a folder for tests, such as s3://bucket/tests, for a store that needs a server."""
STEP = "step-00000001"
KEYS = (
    "latest",
    ".owner",
    f"{STEP}/manifest.json",
    f"{STEP}/.5f1c0a.rank-00000.json",
    *(f"{STEP}/rank-{rank:05d}.weights.safetensors.0123456789abcdef" for rank in range(40)),
)
SIZES = (0, 1, 1000, (1 << 20) + 3)
VERSIONS, VERSION_BYTES = 8, 1 << 22


@clauses
def check_store(catalog: Catalog, name: str, place: str | None = None, **settings: Any) -> None:
    """Raises AssertionError naming the clause of `contracts.Store` that the store breaks.

    place: where it may write and delete, in a folder of its own; None: what NEOX_STORE_PLACE says, else a local folder.
    """
    entry = catalog.find("store", name)
    check_light(entry.component.target)
    hold(entry.component.planner is not None, "its Component names a planner, which keeps checkpoints in the store")
    target, built = entry.load(), build(entry, **settings)
    protocol, _, told = os.environ.get(PLACE, "").partition("://")
    if place is None and protocol == name:
        place = told.rstrip("/")
    with tempfile.TemporaryDirectory() as folder:
        inner = f"{place or folder}/check-{secrets.token_hex(4)}"
        store: Store = target(inner, built)
        hold(not any(Path(folder).iterdir()), "making a store writes nothing")
        has(store, "a store", "list", "read", "write", "delete")
        try:
            found = list(store.list())
        except OSError as error:
            if place is not None:
                raise
            why = f"it cannot use a local folder ({error}); {PLACE}={name}://... names a place to test it in"
            not_applicable("the contract of the kind store", why)
            return
        hold(not found, f"list() of a place without objects is empty; it has {found[:3]}")
        try:
            _check(target, built, inner, Path(folder))
        finally:
            for each in (inner, f"{inner}-beside"):
                with suppress(Exception):  # which would hide the clause that does not hold
                    left = target(each, built)
                    left.delete(list(left.list()))


def _check(target: Any, built: Any, place: str, folder: Path) -> None:
    store, other = target(place, built), target(place, built)
    write = _Writer(store, folder)
    _check_reading(store, write)
    _check_listing(target(f"{place}-beside", built), store, other, write, folder)
    _check_replacing(store, other, write)
    _check_deleting(store, other, write)
    _check_whole(target(place, built), write)


class _Writer:
    """Writes bytes through a store, from a file."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.file = store, folder / "content"

    def __call__(self, key: str, content: bytes) -> None:
        self.file.write_bytes(content)
        self.store.write(key, self.file)
        stays = self.file.is_file() and self.file.read_bytes() == content
        hold(stays, "write() leaves the local file as it is")
        try:
            self.store.read(key, 0, 1)
        except FileNotFoundError as error:
            raise AssertionError(
                f"read() finds what write() has stored, when it returns; {len(content)} bytes it does not find"
            ) from error


def _check_reading(store: Store, write: _Writer) -> None:
    for size in SIZES:
        key, content = f"a/{size}", secrets.token_bytes(size)
        write(key, content)
        middle = size // 3, 2 * size // 3
        for first, last in ((0, size), (0, size + 10), middle, (size - size // 4, size + 1), (size, size + 5)):
            data = store.read(key, first, last)
            hold(isinstance(data, bytes), f"read() gives bytes, not {type(data).__name__}")
            hold(
                data == content[first:last],
                f"read() gives the bytes of the range, fewer where the object ends before; [{first}, {last}) of {size}",
            )
    _check_missing(store, "a", "that is only the start of another key")
    _check_missing(store, f"a/{SIZES[-1]}/b", "below another one")
    for size in SIZES:
        store.delete([f"a/{size}"])


def _check_missing(store: Store, key: str, what: str) -> None:
    try:
        data = store.read(key, 0, 10)
    except FileNotFoundError:
        said = ""
    except Exception as error:  # noqa: BLE001 a component may raise anything
        said = f"raises {error!r}"
    else:
        said = f"gives {data!r}"
    hold(not said, f"read() of a missing object raises FileNotFoundError; of one {what} it {said}")


def _check_listing(beside: Store, store: Store, other: Store, write: _Writer, folder: Path) -> None:
    list(other.list())
    for key in KEYS:
        write(key, key.encode())
    (folder / "beside").write_bytes(b"beside")
    beside.write("latest", folder / "beside")
    for each, whose in ((store, "its own"), (other, "another store's")):
        found = list(each.list())
        hold(all(isinstance(key, str) for key in found), f"list() gives keys as text, not {found[:1]}")
        lacks = sorted({*KEYS} - {*found})
        hold(not lacks, f"list() names every object, {whose} too; it lacks {len(lacks)} of {len(KEYS)}: {lacks[:1]}")
        more = sorted({*found} - {*KEYS})
        hold(not more, f"list() names keys below the place, and only those; it has {more[:3]}")
        hold(len(found) == len({*found}), "list() names each object once")
    own = beside.read("latest", 0, 9) == b"beside" and store.read("latest", 0, 9) == b"latest"
    hold(own, "two places have objects of their own")


def _check_replacing(store: Store, other: Store, write: _Writer) -> None:
    for content in (b"a longer content", b"short", b""):
        other.read("latest", 0, 20)
        write("latest", content)
        hold(store.read("latest", 0, 20) == content, "write() replaces the object of its key")
        found = other.read("latest", 0, 20)
        hold(found == content, "read() of another store gives what was written last, and nothing old")


def _check_deleting(store: Store, other: Store, write: _Writer) -> None:
    doomed, kept = [KEYS[0], *KEYS[4:]], sorted(KEYS[1:4])
    list(other.list()), other.read(KEYS[0], 0, 1)
    store.delete(doomed)
    for each, whose in ((store, "of the same store"), (other, "of another store")):
        found = sorted(each.list())
        hold(not {*found} & {*doomed}, f"what delete() removed is not listed, {whose}")
        hold(found == kept, f"delete() removes what it is told to, and nothing else; {whose} there are {found}")
        _check_missing(each, KEYS[0], "that was deleted")
    try:
        store.delete([KEYS[0], KEYS[1]])
        store.delete([])
    except OSError as error:
        raise AssertionError(f"delete() of an object that is not there is no error; it raises {error!r}") from error
    hold(KEYS[1] not in set(store.list()), "delete() removes the others where one of its keys is not there")
    write(KEYS[0], b"again")
    hold(other.read(KEYS[0], 0, 9) == b"again", "a key that was deleted can be written again")


def _check_whole(reader: Store, write: _Writer) -> None:
    key = f"{STEP}/large"
    with _reading(reader, key) as faults:
        for version in range(VERSIONS):
            write(key, bytes([version]) * (VERSION_BYTES - version))
    hold(not faults, f"an object is whole or absent while write() replaces it; {next(iter(faults), '')}")


@contextmanager
def _reading(store: Store, key: str) -> Iterator[list[str]]:
    """What a reader that never rests finds wrong inside the block."""
    faults: list[str] = []
    done = threading.Event()

    def read() -> None:
        was_there = False
        while not done.is_set() and not faults:
            try:
                data = store.read(key, 0, VERSION_BYTES + 1)
            except FileNotFoundError:
                if was_there:
                    faults.append("a reader finds no object where there was one")
                continue
            except Exception as error:  # noqa: BLE001 whatever it is, it ends the reading
                faults.append(f"a reader gets {error!r}")
                return
            was_there = True
            version = data[0] if data else -1
            if len(data) != VERSION_BYTES - version or data.count(version) != len(data):
                faults.append(f"a reader gets {len(data):,} bytes, which no write() stored")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield faults
    finally:
        done.set()
        thread.join()
