"""`check_evaluator` on the evaluator of docs/plugins/evaluator.md, with one fault at a time."""

import random
import re
import sys
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from neox_author.testing import check_evaluator

from neox_core.hooks.component import GROUP
from neox_core.hooks.loader import load_plugins

PAGE = (Path(__file__).resolve().parents[3] / "docs/plugins/evaluator.md").read_text("utf-8")
FILES = dict(re.findall(r"^`([\w./]+)`:\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def worst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A catalogue with the page's evaluator, and its class."""
    for path, text in {**FILES, "neox_worst/__init__.py": ""}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("neox_worst", "neox_worst.plugin", "neox_worst.evaluator"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    catalog = load_plugins([EntryPoint("neox-worst", "neox_worst.plugin", GROUP)], {})
    check_evaluator(catalog, "worst")
    module = import_module("neox_worst.evaluator")

    return catalog, module.Worst


def rows(rank: int) -> Any:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randint(64, (2, 9), generator=generator)]


def own_mean(self: Any, step: int) -> Any:
    """A missing all-reduce."""
    (loss,) = self.run.engine.evaluate(rows(self.run.context.groups.data_rank))
    return {"mine": float(loss)}


def summed(self: Any, step: int) -> Any:
    """A sum over the ranks in place of a mean."""
    loss = torch.tensor(self.run.loss(self.samples[0]))
    if dist.is_initialized():
        dist.all_reduce(loss)
    return {"mine": float(loss)}


def on_rank_0(self: Any, step: int) -> Any:
    if self.run.context.groups.data_rank == 0:
        return {"mine": self.run.loss(self.samples[0])}
    return {"mine": 0.0}


def named_by_rank(self: Any, step: int) -> Any:
    return {f"rank_{self.run.context.groups.data_rank}": self.run.loss(self.samples[0])}


def trains(self: Any, step: int) -> Any:
    self.run.engine.table *= 1.01
    return {"mine": self.run.loss(self.samples[0])}


def by_chance(self: Any, step: int) -> Any:
    return {"mine": self.run.loss(self.samples[0]) + random.random()}


def once(self: Any, step: int) -> Any:
    self.first = getattr(self, "first", None) or self.run.loss(self.samples[0])
    return {"mine": self.first}


def without_gradients(self: Any, step: int) -> Any:
    torch.set_grad_enabled(False)
    return {"mine": self.run.loss(self.samples[0])}


def in_double(self: Any, step: int) -> Any:
    torch.set_default_dtype(torch.float64)
    return {"mine": self.run.loss(self.samples[0])}


@pytest.mark.parametrize(
    ("fault", "clause"),
    [
        (without_gradients, "it leaves gradients on"),
        (in_double, r"it leaves torch.set_default_dtype\(\) as it was"),
        (own_mean, "all ranks get the same numbers, those of one rank; mine is"),
        (summed, "all ranks get the same numbers, those of one rank; mine is"),
        (on_rank_0, "every rank makes the same collective calls|all ranks get the same numbers"),
        (named_by_rank, "all ranks get the same numbers, those of one rank; not rank_1"),
        (trains, "it leaves the weights as they are"),
        (by_chance, "the same weights give the same numbers"),
        (once, "other weights give other numbers"),
        (lambda self, step: {}, "and one or more"),
        (lambda self, step: {"mine": torch.ones(())}, "a float for each name"),
        (lambda self, step: {"my loss": self.run.loss(self.samples[0])}, "a name is made of letters, digits"),
        (lambda self, step: {"valid_loss": self.run.loss(self.samples[0])}, "none of the run's; it has valid_loss"),
    ],
)
def test_a_fault_is_named(worst: Any, monkeypatch: pytest.MonkeyPatch, fault: Any, clause: str) -> None:
    catalog, cls = worst
    monkeypatch.setattr("neox_author.testing.two_ranks.LIMIT_S", 6.0)
    monkeypatch.setattr(cls, "evaluate", fault)
    with torch.enable_grad(), pytest.raises(AssertionError, match=clause):
        check_evaluator(catalog, "worst")
    torch.set_default_dtype(torch.float32)


def test_one_that_measures_nothing_gives_no_numbers(worst: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, cls = worst
    monkeypatch.setattr(cls, "measures", False, raising=False)
    monkeypatch.setattr(cls, "evaluate", lambda self, step: {"mine": 1.0})
    with pytest.raises(AssertionError, match="returns no numbers, as `measures` says"):
        check_evaluator(catalog, "worst")
    monkeypatch.setattr(cls, "evaluate", lambda self, step: {})
    check_evaluator(catalog, "worst")
