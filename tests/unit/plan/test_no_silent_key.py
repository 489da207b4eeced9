"""Every implemented key is changed: the plan or the engine's JSON changes, or a note or an error names the key.

Each key is changed twice: alone in a small config, where it may do nothing as long as that is said, and beside what it
needs, where it acts (or is in `REFUSED`, with the answer that it always gets). Whether a rank reads what has changed is
asked by tests/e2e/test_plan_is_read.py.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from changed_keys import HOLDS, REFUSED, changes, keys
from neox_reference.keys import Key
from plan_answers import CPU, answer_to, asking

from neox_core.config.schema.convert import fields_of
from neox_core.hooks.loader import load_plugins
from neox_core.plan import runfile

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with asking(tmp_path_factory.mktemp("keys")) as ask:
        yield ask


@pytest.mark.parametrize("key", [pytest.param(key, id=f"{key.part}: {key.path}") for key in keys()])
def test_a_key_acts_or_is_answered(key: Key, ask: Any) -> None:
    path, value, beside, machine = changes(key)
    alone, _ = answer_to(ask, path, value, (), CPU)
    assert alone != "silent" or path in HOLDS
    with_it, said = answer_to(ask, path, value, beside, machine)
    assert with_it in ("acts", "noted") or path in REFUSED | HOLDS, said


def test_a_plan_holds_nothing_that_nobody_reads() -> None:
    """A key that lands in a plan acts only where a rank, a launcher or a command reads it from there."""
    folders = (path for path in (ROOT / "neox_core").iterdir() if path.is_dir() and path.name not in ("config", "plan"))
    text = _code([*folders, *ROOT.glob("plugins/*/neox_*")])
    classes = {each for each in vars(runfile).values() if isinstance(each, type) and attrs.has(each)}
    classes -= {runfile.ComponentRef}  # reads itself: the test below is about its settings
    names = {f"{cls.__name__}.{each.name}" for cls in classes for each in attrs.fields(cls)}
    unread = {name for name in names if name.rpartition(".")[2] not in text}
    assert unread == set()


def test_no_setting_of_a_component_is_unread() -> None:
    """Each is read by name in its package, or the core reads it of all that have it."""
    everywhere = _code([ROOT / "neox_core"])
    refused = {path.rpartition(".")[2] for path in REFUSED}
    unread: list[str] = []
    for entry in load_plugins().registry.entries():
        package = entry.component.target.partition(".")[0]
        (folder,) = ROOT.glob(f"plugins/*/{package}")
        text = _code([folder])
        if entry.component.settings is None or "asdict" in text:  # all are handed on
            continue
        names = {field.name for field in fields_of(entry.component.settings)}
        unread += [f"{entry.qualified}: {name}" for name in sorted(names - text - everywhere - refused)]
    assert unread == []


def _code(folders: Iterable[Path]) -> set[str]:
    """The names of all that the code of some folders reads by an attribute, an item, or as an imported function."""
    files = [path for folder in folders for path in folder.rglob("*.py")]
    read = re.compile(r"\.([a-z_0-9]+)\b|\"([a-z_0-9]+)\"|import (asdict)")
    return {name for path in files for found in read.findall(path.read_text(encoding="utf-8")) for name in found}
