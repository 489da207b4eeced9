"""Every key of every shipped recipe, spoiled in each of four ways: an error that names the key, or on a short list."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from neox_core.config.read.load import load
from neox_core.config.report import ProblemsError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run

CONFIGS = Path(__file__).parents[3] / "configs"
RECIPES = sorted(CONFIGS.rglob("*.yml"))

# (mutation, key) that may pass. A range is what a number has; these are texts that name files or say anything.
HARMLESS = {
    ("range", "data_path"): "a dataset that is not there is a warning before the start, and an error at the start",
    ("range", "vocab_file"): "a file that the ranks open",
    ("range", "merge_file"): "a file that the ranks open",
    ("range", "save"): "any folder",
    ("range", "load"): "a folder that a start looks at",
    ("range", "bert_load"): "a folder that a start looks at",
    ("range", "titles_data_path"): "files that the ranks open",
    ("range", "block_data_path"): "any folder",
    ("range", "report_topk_accuracies"): "none",
    ("range", "sample_prompt"): "any text",
    ("section", "optimizer.params.lr"): "the old spelling of the same",
    ("section", "fp16.loss_scale"): "the old spelling of the same",
    ("section", "fp16.loss_scale_window"): "the old spelling of the same",
    ("section", "fp16.hysteresis"): "the old spelling of the same",
}


@pytest.fixture(scope="module")
def installed() -> Any:
    return load_plugins()


def values_of(recipe: Path) -> dict[str, Any]:
    """The recipe as one mapping, to be started from one machine that has all the devices it states."""
    return dict(load([recipe]).values) | {"launcher": "local"}


def devices(recipe: Path) -> int:
    found = re.search(r"cluster: (\d+) hosts? x (\d+)", recipe.read_text())
    return int(found[1]) * int(found[2]) if found else 0


def leaves(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def block(values: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for part in path[:-1]:
        values = values[part]
    return values


def wrong_type(value: Any) -> Any:
    if isinstance(value, bool):
        return "false"
    return "word" if isinstance(value, int | float) else {"a": 1}


def out_of_range(value: Any) -> Any:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return -7
    return [] if isinstance(value, list) else "nonesuch"


def mutants(values: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(mutation, the dotted key that is to be named, the values)."""
    dotted, last = ".".join(path), path[-1]
    typo, section, types, bounds = (deepcopy(values) for _ in range(4))
    block(typo, path)[f"{last}x"] = block(typo, path).pop(last)
    yield "typo", f"{dotted}x", typo
    moved = block(section, path).pop(last)
    if len(path) == 1:
        section.setdefault("fp16", {})[last] = moved
        yield "section", f"fp16.{last}", section
    else:
        section[last] = moved
        yield "section", last, section
    block(types, path)[last] = wrong_type(block(types, path)[last])
    yield "type", dotted, types
    value = out_of_range(block(bounds, path)[last])
    if value is not None:
        block(bounds, path)[last] = value
        yield "range", dotted, bounds


def cases() -> Iterator[Any]:
    """Each key of each recipe; one with a value that an earlier recipe has too would say the same, and is left out."""
    seen = set()
    for recipe in RECIPES:
        values = values_of(recipe)
        for path in leaves(values):
            told = (path, json.dumps(block(values, path)[path[-1]]))
            if told not in seen:
                seen.add(told)
                yield pytest.param(recipe, path, id=f"{recipe.stem}-{'.'.join(path)}")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_itself_has_no_error(recipe: Path, tmp_path: Path, installed: Any) -> None:
    assert said(tmp_path, values_of(recipe), recipe, installed) == []


@pytest.mark.parametrize(("recipe", "path"), list(cases()))
def test_a_spoiled_key_is_named(recipe: Path, path: tuple[str, ...], tmp_path: Path, installed: Any) -> None:
    for mutation, key, values in mutants(values_of(recipe), path):
        if (mutation, ".".join(path)) in HARMLESS:
            continue
        named = said(tmp_path, values, recipe, installed)
        assert [each for each in named if each == key or each.startswith((f"{key}.", f"{key}["))], (mutation, named)


def said(folder: Path, values: dict[str, Any], recipe: Path, installed: Any) -> list[str]:
    """The keys that the errors are about."""
    file = folder / "c.json"
    file.write_text(json.dumps(values))
    try:
        prepare_run([file], catalog=installed, machine=Machine(devices(recipe), 64), start=False)
    except ProblemsError as error:
        return [each.key.replace("-", "_") for each in error.problems if each.severity == "error"]
    return []
