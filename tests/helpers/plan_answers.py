"""What becomes of a small config with some keys set: a plan, and what is said; and in what two plans differ."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, get_origin

import attrs
import pytest
from attrs import evolve, frozen
from neox_deepspeed.config.rules import offload

from neox_core.config.problem import Problem
from neox_core.config.report import ProblemsError
from neox_core.config.schema.convert import block_of, fields_of
from neox_core.hooks.component import load_path
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import ComponentRef, RunPlan, to_json
from neox_core.plan.stored.saved import MANIFEST, RUN, sealed

CPU, GPU = Machine(0, 4), Machine(4, 4)
CONFIG = """\
num-layers: 4
hidden-size: 64
num-attention-heads: 4
max-position-embeddings: 32
seq-length: 32
data-impl: mmap
padded-vocab-size: 256
train-iters: 100
train_micro_batch_size_per_gpu: 4
optimizer: {type: Adam, params: {lr: 1e-3}}
"""
Sets = tuple[str, ...]


@frozen
class Answer:
    """What becomes of a config: a plan, None where there is none, and what is said."""

    plan: RunPlan | None
    said: tuple[Problem, ...]


@contextmanager
def asking(folder: Path) -> Iterator[Callable[[Sets, Machine], Answer]]:
    """`--set`s to their answer, each asked once. folder: an empty one, for the files that keys name."""
    catalog = load_plugins()
    for library in ("tensorboard", "triton", "wandb", "comet_ml", "xgboost", "lm_eval"):  # looked for, and not imported
        (folder / f"{library}.py").touch()
    (folder / "libaio.h").touch()
    (folder / "hosts").write_text("a slots=2\nb slots=2\n")
    (folder / "c.yml").write_text(CONFIG)
    _write_teacher(folder, catalog)

    @cache
    def _ask(sets: Sets, machine: Machine) -> Answer:
        data = () if any(each.startswith("train_data_paths") for each in sets) else ("data_path=none",)
        last = {
            each.partition("=")[0]: each.replace("HOSTS", str(folder / "hosts")).replace(
                "TEACHER", str(folder / "teacher")
            )
            for each in (*data, *sets)
        }
        try:
            run = prepare_run([folder / "c.yml"], [*last.values()], catalog=catalog, machine=machine, start=False)
        except ProblemsError as error:
            return Answer(None, tuple(error.problems))
        return Answer(_without_idle(run.plan), run.notes)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr(offload, "INCLUDES", (str(folder),))
        yield _ask


def _without_idle(plan: RunPlan) -> RunPlan:
    """The plan without what DeepSpeed does not look at: at stage 0, all of zero_optimization but that stage."""
    if plan.engine.get("zero_optimization", {}).get("stage") == 0:
        return evolve(plan, engine={**plan.engine, "zero_optimization": {"stage": 0}})
    return plan


def _write_teacher(folder: Path, catalog: Any) -> None:
    """What the host reads of a checkpoint of the same model, in `folder`/teacher."""
    checkpoint = folder / "teacher/step-00000001"
    checkpoint.mkdir(parents=True)
    plan = prepare_run([folder / "c.yml"], ["data_path=none"], catalog=catalog, machine=CPU, start=False).plan
    text = to_json(plan).encode()
    (checkpoint / RUN).write_bytes(text)
    seal = {"size": len(text), "sha256": sha256(text).hexdigest()}
    (checkpoint / MANIFEST).write_bytes(sealed({"files": {RUN: seal}, "pieces": []}))


def answer_to(ask: Any, key: str, value: str, beside: Sets, machine: Machine) -> tuple[str, str]:
    """("acts" | "noted" | "refused" | "silent", what is said)."""
    before, after = ask(beside, machine), ask((*beside, f"{key}={value}"), machine)
    assert before.plan is not None, [each.message for each in before.said if each.severity == "error"]
    new = [each for each in after.said if each not in before.said]
    if after.plan is None:
        return "refused", next(each.message for each in new if each.severity == "error")
    about = [each.message for each in new if is_about(each, key)]
    if about:
        return "noted", about[0]
    return ("acts" if changed_fields(before.plan, after.plan) else "silent"), ""


def is_about(problem: Problem, key: str) -> bool:
    """Whether a problem or a note is about a key."""
    said = problem.key.replace("-", "_")
    return said == key or key.startswith(f"{said}.") or key.rpartition(".")[2] in problem.message


def changed_fields(before: Any, after: Any, owner: str = "") -> set[str]:
    """`Class.field` of each field of a plan, or of the settings of a component, in which two plans differ.

    Of the engine's values, each is named by its path: `engine.zero_optimization.stage`.
    """
    if before == after:
        return set()
    if isinstance(before, ComponentRef) and isinstance(after, ComponentRef):
        if before.settings_class is None or evolve(before, settings={}) != evolve(after, settings={}):
            return {owner}
        return _changed_settings(load_path(before.settings_class), before.settings, after.settings)
    if owner.startswith("engine") and {type(before), type(after)} <= {dict, type(None)}:
        before, after = before or {}, after or {}
        names = {*before, *after}
        return {each for name in names for each in changed_fields(before.get(name), after.get(name), f"{owner}.{name}")}
    if isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
        return {each for pair in zip(before, after, strict=True) for each in changed_fields(*pair, owner)}
    if attrs.has(type(before)) and type(before) is type(after):
        names = [each.name for each in attrs.fields(type(before))]
        owners = {name: "engine" if name == "engine" else f"{type(before).__name__}.{name}" for name in names}
        pairs = ((getattr(before, name), getattr(after, name), owners[name]) for name in names)
        return {each for pair in pairs for each in changed_fields(*pair)}
    return {owner}


def _changed_settings(kind: type, before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    found: set[str] = set()
    for each in fields_of(kind):
        one, other, block = before.get(each.name), after.get(each.name), block_of(each.type)
        if one != other:
            inside = isinstance(one, dict) and isinstance(other, dict) and block is not None
            by_name = inside and get_origin(each.type) is dict and one.keys() == other.keys()
            pairs = [(one[name], other[name]) for name in one] if by_name else [(one, other)]
            for pair in pairs:
                found |= _changed_settings(block, *pair) if inside else {f"{kind.__name__}.{each.name}"}
    return found
