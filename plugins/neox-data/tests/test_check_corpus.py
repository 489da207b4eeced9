"""A corpus of a plugin, with one fault at a time."""

import json
import os
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from neox_data.api import Corpus
from neox_data.testing import check_corpus

from neox_core.api import Component, hookimpl
from neox_core.errors import DataError
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.component import GROUP
from neox_core.hooks.loader import load_plugins

LISTING = "neox_proverbs_listing"


class Proverbs:
    def __init__(self, settings: object) -> None:
        pass

    def open(self, folder: Path) -> Any:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "proverbs.jsonl"
        if not file.exists():
            file.write_text(json.dumps({"text": "Haste makes waste."}), "utf-8")
        return Corpus((file,), root=folder)


class Again(Proverbs):
    def open(self, folder: Path) -> Any:
        found = super().open(folder)
        os.utime(found.files[0], ns=(found.files[0].stat().st_mtime_ns + 1,) * 2)
        return found


class Nowhere(Proverbs):
    def open(self, folder: Path) -> Any:
        return Corpus((folder / "nothing",), root=folder)


class Apart(Proverbs):
    def open(self, folder: Path) -> Any:
        return Corpus(super().open(folder).files, root=folder / "other")


class Paths(Proverbs):
    def open(self, folder: Path) -> Any:
        return [super().open(folder).files]


class Sorry(Proverbs):
    def open(self, folder: Path) -> Any:
        raise DataError("there is nothing")


class Listing:
    @hookimpl
    def neox_corpora(self) -> list[Component]:
        return [Component(each.__name__, f"{LISTING}:{each.__name__}") for each in FAULTS]


FAULTS: dict[Any, str] = {
    Proverbs: "",
    Again: "a second call makes nothing again",
    Nowhere: "open.. gives files that are there",
    Apart: "`root` is the folder that the files are in",
    Paths: "gives a neox_data.api.Corpus, not a list",
    Sorry: "open.. gives the files of the corpus; there is nothing",
}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    import sys

    module: Any = ModuleType(LISTING)
    vars(module).update({each.__name__: each for each in FAULTS})
    module.neox_corpora = Listing().neox_corpora
    sys.modules[module.__name__] = module
    points = [EntryPoint("neox-data", "neox_data.plugin", GROUP), EntryPoint("neox-proverbs", module.__name__, GROUP)]
    return load_plugins(points, {})


@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: each.__name__)
def test_a_fault_is_named(fault: Any, catalog: Catalog) -> None:
    if not FAULTS[fault]:
        check_corpus(catalog, fault.__name__)
        return
    with pytest.raises(AssertionError, match=FAULTS[fault]):
        check_corpus(catalog, fault.__name__)
