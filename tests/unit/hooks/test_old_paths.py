"""Import paths of API 1 give the modules that are there today, to imports and to `python -m`."""

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

from neox_core.old_paths import FOLDERS, tables

MOVED, NAMES = tables()["modules"], tables()["names"]


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_old_path_is_where_the_module_is_today(old: str, new: str) -> None:
    assert find_spec(old) is not None
    assert find_spec(new) is not None


@pytest.mark.parametrize("old", [old for old in MOVED if not old.endswith(("native", "layers", "layouts"))])
def test_both_names_are_one_module(old: str) -> None:
    parent, _, name = old.rpartition(".")
    if old.startswith("neox_core.parallel."):
        pytest.importorskip("torch")
    there = import_module(MOVED[old])
    assert import_module(old) is there
    assert getattr(import_module(parent), name) is there
    assert there.__name__ == there.__spec__.name == MOVED[old]


@pytest.mark.parametrize(("module", "home"), [(old, new) for old, homes in NAMES.items() for new in homes])
def test_a_name_that_has_moved_is_where_it_was(module: str, home: str) -> None:
    for name in NAMES[module][home]:
        if home.endswith("testing"):  # a check needs torch
            pytest.importorskip("torch")
        assert getattr(import_module(module), name) is getattr(import_module(home), name)
    with pytest.raises(AttributeError, match=rf"module '{module}' has no attribute 'Nrom'"):
        import_module(module).Nrom  # noqa: B018


def test_a_launcher_of_api_1_starts_ranks() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "neox_core.train.rank"], capture_output=True, text=True, check=False, env={}
    )
    assert done.returncode == 2
    assert "RUN_FILE" in done.stderr


def test_nothing_else_is_found() -> None:
    assert all(find_spec(f"{folder}.loop") is None for folder in FOLDERS)


def test_a_plugin_of_api_1_finds_the_corpus_that_it_returns() -> None:
    assert import_module("neox_core.build.corpus").Corpus is import_module("neox_core.contracts").Corpus
