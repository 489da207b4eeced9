"""`check_checkpoint_format` on the format of docs/plugins/checkpoint-format.md, sound and with one fault at a time."""

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from neox_author.testing import load_only
from neox_checkpoints.api import Stored
from neox_checkpoints.testing import check_checkpoint_format, formats

from neox_core.errors import CheckpointError
from neox_core.hooks.component import GROUP
from neox_core.hooks.loader import load_plugins

PAGE = Path(__file__).resolve().parents[3] / "docs/plugins/checkpoint-format.md"
FILE = re.compile(r"^`([\w./]+)`[^\n]*:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PACKAGE = "neox_plainly_run"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The catalogue with the page's format, and the module of it."""
    files = dict(FILE.findall(PAGE.read_text("utf-8")))
    for path, text in {**files, f"{PACKAGE}/__init__.py": ""}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in ("", ".plugin", ".component"):
        monkeypatch.delitem(sys.modules, f"{PACKAGE}{name}", raising=False)
    point = EntryPoint("neox-plainly-run", f"{PACKAGE}.plugin", GROUP)
    return load_plugins([*entry_points(group=GROUP), point], {}), import_module(f"{PACKAGE}.component")


def test_a_sound_one_passes(page: Any) -> None:
    check_checkpoint_format(page[0], "plainly-run")


def test_formats_without_an_example_are_tried_on_other_folders() -> None:
    check_checkpoint_format(load_only("neox-checkpoints"), "neox")


def _with(tensors: Any) -> Any:
    """A run whose tensors are changed by a function of those that the page gives."""

    def change(module: Any) -> Any:
        class Run(module.Run):  # type: ignore[misc]  # a class that is loaded by its path
            def tensors(self, model: Any) -> Iterator[Stored]:
                yield from tensors(list(super().tensors(model)))

        return {"Run": Run}

    return change


def _form(**methods: Any) -> Any:
    return lambda module: {"PlainlyRun": type("Changed", (module.PlainlyRun,), methods)}


def _has(**attributes: Any) -> Any:
    return lambda module: {"Run": type("Changed", (module.Run,), attributes)}


def _careless(self: Any, model: Any) -> Iterator[Stored]:
    """No error of a library is translated."""
    from neox_gpt.api import parameter_shapes
    from safetensors.torch import load_file

    found = load_file(self.folder / "weights.safetensors")
    for name in parameter_shapes(model, 32):
        yield Stored("weight", name, found[name])


def _two_lines(self: Any, folder: Path) -> str | None:
    return "one\ntwo" if (folder / "run.json").is_file() else None


EVERYTHING = {"recognises": lambda self, folder: "everything"}
NOTHING = {"recognises": lambda self, folder: None}
FAULTS: dict[str, tuple[Any, str]] = {
    "takes every folder": (_form(**EVERYTHING), "recognises() gives None for a folder that is not there"),
    "takes no folder": (_form(**NOTHING), "recognises() tells in one line what a folder holds"),
    "two lines": (_form(recognises=_two_lines), "recognises() tells in one line what a folder holds"),
    "a parameter is left out": (_with(lambda found: found[:-1]), "with each parameter of the model once"),
    "a parameter comes twice": (_with(lambda found: [*found, found[0]]), "becomes a checkpoint of neox"),
    "another shape": (_with(lambda found: [evolve(each, tensor=each.tensor[:1]) for each in found]), "once; "),
    "says that it has states": (_has(has_optimizer=True), "`has_optimizer` is False where the state is not wanted"),
    "comments of other keys": (_has(comments={"warmup": "none"}), "`comments` are on keys that are there"),
    "errors of a library": (_has(tensors=_careless), "what the contract allows raises nothing; it raises"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(page: Any, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    catalog, module = page
    monkeypatch.setattr(formats, "check_light", lambda target: None)  # which starts a process
    change, clause = FAULTS[fault]
    for name, value in change(module).items():
        monkeypatch.setattr(module, name, value)
    with pytest.raises(AssertionError, match=re.escape(clause)):
        check_checkpoint_format(catalog, "plainly-run")


def test_a_file_of_which_less_is_enough_is_named(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A format that takes what is there instead of what has to be there."""
    catalog, module = page
    whole = module.PlainlyRun.open

    def open_any(self: Any, folder: Path, configs: Any, *, optimizer: bool) -> Any:
        try:
            return whole(self, folder, configs, optimizer=optimizer)
        except CheckpointError:
            if not (folder / module.WEIGHTS).exists():
                raise
            told = {"layers": 1, "width": 8, "heads": 2, "context": 16, "vocab": 32, "step": 7}
            return module.Run(folder, told)

    monkeypatch.setattr(module.PlainlyRun, "open", open_any)
    with pytest.raises(AssertionError, match=r"missing or cut off is a CheckpointError; not so run\.json, missing"):
        check_checkpoint_format(catalog, "plainly-run")
