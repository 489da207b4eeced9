"""Each field of a plan says which config keys it comes from, or what it follows from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import attrs
import pytest
from neox_author.testing import example_plan
from neox_reference.keys import own_keys

from neox_core.hooks.component import load_path
from neox_core.hooks.loader import load_plugins
from neox_core.plan.runfile import ComponentRef, ModelPlan, OptimPlan, RunPlan
from neox_core.plan.source import CONTENTS, FIRST, SAMPLES, SCHEDULE, SETTING, SHAPES, START, source_of
from neox_core.plan.stored.schedule import schedule_terms

NOT_COMPARED = {START, FIRST}
COMPARED = {SAMPLES, CONTENTS, SCHEDULE, SETTING, SHAPES}


def plan_classes(cls: type) -> Iterator[type]:
    """A class of a plan, and those of its fields."""
    yield cls
    for kind in get_type_hints(cls).values():
        for each in _inside(kind):
            if attrs.has(each) and each is not ComponentRef:
                yield from plan_classes(each)


def _inside(kind: Any) -> Iterator[type]:
    if isinstance(kind, type):
        yield kind
    for each in get_args(kind):
        yield from _inside(each)


OF_MODELS = [load_path(entry.require_planner()).plan_class for entry in load_plugins().registry.entries("architecture")]
CLASSES = tuple(dict.fromkeys(each for cls in (RunPlan, *OF_MODELS) for each in plan_classes(cls)))


@pytest.fixture(scope="module")
def keys() -> set[str]:
    """Every key that a config can write, in all its spellings."""
    return {spelling for key in own_keys(load_plugins().registry) for spelling in key.spellings}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_each_field_has_a_source(cls: type, keys: set[str]) -> None:
    kinds = load_plugins().registry.kinds.keys()
    for name, field in attrs.fields_dict(cls).items():
        if field.type in CLASSES:
            continue
        source = source_of(field)
        here = f"{cls.__name__}.{name}"
        assert source.keys or source.kinds or source.derived or source.apart, f"{here}: name its keys with of(...)"
        assert set(source.keys) <= keys, f"{here}: no config can write {set(source.keys) - keys}"
        assert set(source.kinds) <= kinds


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_what_stands_apart_states_one_of_the_reasons(cls: type) -> None:
    """Whatever else a resumed run finds changed stops it or is named, so a reason of one's own would hide a change."""
    apart = {name: source_of(field).apart for name, field in attrs.fields_dict(cls).items()}
    assert set(apart.values()) <= {"", *NOT_COMPARED, *COMPARED}, apart


@pytest.mark.parametrize(
    "name", [name for name, field in attrs.fields_dict(OptimPlan).items() if source_of(field).apart == SCHEDULE]
)
def test_what_the_schedule_compares_is_in_its_terms(tmp_path: Path, name: str) -> None:
    plan = example_plan(tmp_path).optim
    value = getattr(plan, name)
    other = attrs.evolve(value, name="another") if isinstance(value, ComponentRef) else value + 1
    assert schedule_terms(attrs.evolve(plan, **{name: other})) != schedule_terms(plan)


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if issubclass(cls, ModelPlan)], ids=lambda cls: cls.__name__)
def test_what_the_shapes_compare_shapes_the_model(cls: type[ModelPlan]) -> None:
    """`make_vocab_size_divisible_by` does so through the rows of the embedding, which only a rank may know."""
    fields = {name for name, field in attrs.fields_dict(cls).items() if source_of(field).apart == SHAPES}
    marks = {name: f"of {name}" for name in fields}
    assert fields - {"make_vocab_size_divisible_by"} <= {
        name for name, mark in marks.items() if mark in cls.shaping(marks).values()
    }
