"""`check_store` on the store of docs/plugins/store.md, with one fault at a time."""

import re
import time
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from neox_author.testing import check_store
from neox_author.testing.clauses import heard

from neox_core.hooks.component import GROUP
from neox_core.hooks.loader import load_plugins
from neox_core.hooks.registry import Registry

PAGE = (Path(__file__).resolve().parents[3] / "docs/plugins/store.md").read_text("utf-8")
FILES = dict(re.findall(r"^`([\w./]+)`:\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The catalog of the page's plugin, and the class of its store, which keeps the contract."""
    for path, text in {**FILES, "neox_database/__init__.py": ""}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in ("neox_database", "neox_database.plugin", "neox_database.store"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    catalog = load_plugins([EntryPoint("neox-database", "neox_database.plugin", GROUP)], {})
    check_store(catalog, "sqlite")
    module = import_module("neox_database.store")

    return catalog, module.Database


def listed_once(plain: Any) -> Any:
    """A listing that is kept: other ranks' objects are missing from it."""

    def listing(self: Any) -> Any:
        self.__dict__.setdefault("kept", list(plain["list"](self)))
        return self.kept

    return {"list": listing}


def first_page(plain: Any) -> Any:
    return {"list": lambda self: sorted(plain["list"](self))[:25]}


def listed_twice(plain: Any) -> Any:
    return {"list": lambda self: [*plain["list"](self)] * 2}


def of_the_place_beside(plain: Any) -> Any:
    def init(self: Any, place: str, settings: Any) -> None:
        plain["__init__"](self, place.removesuffix("-beside"), settings)

    return {"__init__": init}


def read_once(plain: Any) -> Any:
    """A content that is kept."""

    def read(self: Any, key: str, first: int, last: int) -> bytes:
        kept = self.__dict__.setdefault("kept", {})
        if (key, first, last) not in kept:
            kept[key, first, last] = plain["read"](self, key, first, last)
        return bytes(kept[key, first, last])

    return {"read": read}


def one_byte_more(plain: Any) -> Any:
    return {"read": lambda self, key, first, last: plain["read"](self, key, first, last + 1)}


def from_the_start(plain: Any) -> Any:
    return {"read": lambda self, key, first, last: plain["read"](self, key, 0, last)}


def nothing_is_empty(plain: Any) -> Any:
    def read(self: Any, key: str, first: int, last: int) -> bytes:
        try:
            return bytes(plain["read"](self, key, first, last))
        except FileNotFoundError:
            return b""

    return {"read": read}


def missing_is_any_error(plain: Any) -> Any:
    def read(self: Any, key: str, first: int, last: int) -> bytes:
        try:
            return bytes(plain["read"](self, key, first, last))
        except FileNotFoundError:
            raise OSError("404") from None

    return {"read": read}


def missing_is_a_key_error(plain: Any) -> Any:
    def read(self: Any, key: str, first: int, last: int) -> bytes:
        try:
            return bytes(plain["read"](self, key, first, last))
        except FileNotFoundError:
            raise KeyError(key) from None

    return {"read": read}


def made_at_once(plain: Any) -> Any:
    def init(self: Any, place: str, settings: Any) -> None:
        plain["__init__"](self, place, settings)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.touch()

    return {"__init__": init}


def as_paths(plain: Any) -> Any:
    return {"list": lambda self: [Path(key) for key in plain["list"](self)]}


def empty_is_missing(plain: Any) -> Any:
    def read(self: Any, key: str, first: int, last: int) -> bytes:
        if not (data := plain["read"](self, key, first, last)) and not first:
            raise FileNotFoundError(key)
        return bytes(data)

    return {"read": read}


def moves_the_file(plain: Any) -> Any:
    def write(self: Any, key: str, file: Path) -> None:
        plain["write"](self, key, file)
        file.unlink()

    return {"write": write}


def in_two_parts(plain: Any) -> Any:
    """A part is visible before the whole is."""

    def write(self: Any, key: str, file: Path) -> None:
        content = file.read_bytes()
        if len(content) > 1 << 21:
            part = file.with_name("part")
            part.write_bytes(content[: len(content) // 2])
            plain["write"](self, key, part)
            time.sleep(0.05)
        plain["write"](self, key, file)

    return {"write": write}


def removed_first(plain: Any) -> Any:
    """For a while there is neither the old object nor the new one."""

    def write(self: Any, key: str, file: Path) -> None:
        self.delete([key])
        time.sleep(0.02 if file.stat().st_size > 1 << 21 else 0)
        plain["write"](self, key, file)

    return {"write": write}


def kept_as_it_was(plain: Any) -> Any:
    def write(self: Any, key: str, file: Path) -> None:
        if key not in set(self.list()):
            plain["write"](self, key, file)

    return {"write": write}


def takes_the_file(plain: Any) -> Any:
    def write(self: Any, key: str, file: Path) -> None:
        plain["write"](self, key, file)
        file.write_bytes(b"gone")

    return {"write": write}


def never_removed(plain: Any) -> Any:
    return {"delete": lambda self, keys: plain["delete"](self, keys[:1])}


def removed_with_all_below(plain: Any) -> Any:
    def delete(self: Any, keys: Any) -> None:
        heads = {key.partition("/")[0] for key in keys}
        plain["delete"](self, [key for key in self.list() if key.partition("/")[0] in heads])

    return {"delete": delete}


def refuses_what_is_gone(plain: Any) -> Any:
    def delete(self: Any, keys: Any) -> None:
        if set(keys) - set(self.list()):
            raise FileNotFoundError("not there")
        plain["delete"](self, keys)

    return {"delete": delete}


FAULTS = {
    listed_once: "list() names every object, another store's too; it lacks 44 of 44",
    first_page: "list() names every object, its own too; it lacks 19 of 44",
    listed_twice: "list() names each object once",
    of_the_place_beside: "two places have objects of their own",
    read_once: "read() of another store gives what was written last",
    one_byte_more: "read() gives the bytes of the range",
    from_the_start: "read() gives the bytes of the range",
    nothing_is_empty: "read() of a missing object raises FileNotFoundError",
    missing_is_any_error: "read() of a missing object raises FileNotFoundError",
    missing_is_a_key_error: "read() of a missing object raises FileNotFoundError",
    made_at_once: "making a store writes nothing",
    in_two_parts: "an object is whole or absent while write() replaces it; a reader gets",
    removed_first: "an object is whole or absent while write() replaces it; a reader finds no object",
    kept_as_it_was: "write() replaces the object of its key",
    as_paths: "list() gives keys as text, not [PosixPath(",
    empty_is_missing: "read() finds what write() has stored, when it returns; 0 bytes it does not find",
    moves_the_file: "write() leaves the local file as it is",
    takes_the_file: "write() leaves the local file as it is",
    never_removed: "what delete() removed is not listed",
    removed_with_all_below: "delete() removes what it is told to, and nothing else",
    refuses_what_is_gone: "delete() of an object that is not there is no error",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_named(store: Any, monkeypatch: pytest.MonkeyPatch, fault: Any) -> None:
    catalog, cls = store
    for name, member in fault(dict(vars(cls))).items():
        monkeypatch.setattr(cls, name, member)
    with pytest.raises(AssertionError) as raised:
        check_store(catalog, "sqlite")
    assert str(raised.value).startswith(FAULTS[fault])


def test_a_store_without_a_planner_is_named(store: Any) -> None:
    catalog, _ = store
    (entry,) = catalog.registry.offers("store", "sqlite")
    registry = Registry()
    registry.add(evolve(entry, component=evolve(entry.component, planner=None)))
    with pytest.raises(AssertionError, match="its Component names a planner"):
        check_store(evolve(catalog, registry=registry), "sqlite")


def test_a_store_that_needs_a_server_says_how_it_is_tested(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, cls = store

    def refuses(self: Any) -> None:
        raise OSError("no server")

    monkeypatch.setattr(cls, "list", refuses)
    told = []
    with heard(lambda clause, why: told.append(why)):
        check_store(catalog, "sqlite")
    assert told[-1] == (
        "it cannot use a local folder (no server); NEOX_STORE_PLACE=sqlite://... names a place to test it in"
    )
    monkeypatch.setenv("NEOX_STORE_PLACE", "sqlite://somewhere")
    with pytest.raises(AssertionError, match="no server"):
        check_store(catalog, "sqlite")
