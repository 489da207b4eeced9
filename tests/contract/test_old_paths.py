"""The paths that API 1 documented lead to what is there today."""

from importlib import import_module, util

import pytest

from neox_core.old_paths import tables

MOVED, NAMES = tables()["modules"], tables()["names"]


@pytest.mark.parametrize("old", MOVED)
def test_an_old_module_leads_to_one_that_is_there(old: str) -> None:
    assert util.find_spec(MOVED[old]) is not None
    assert util.find_spec(old) is not None


@pytest.mark.parametrize(("module", "home"), [(module, home) for module, homes in NAMES.items() for home in homes])
def test_an_old_name_is_one_of_its_home(module: str, home: str) -> None:
    there = import_module(home)
    assert set(NAMES[module][home]) <= {*dir(there), *getattr(there, "__all__", ())}
