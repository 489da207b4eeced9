"""`check_callback` on the callback of docs/plugins/callback.md, with one fault at a time."""

import random
import re
import sys
import time
from contextlib import nullcontext
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from neox_author.testing import check_callback

from neox_core.contracts.events import Ask
from neox_core.hooks.component import GROUP
from neox_core.hooks.loader import load_plugins

PAGE = (Path(__file__).resolve().parents[3] / "docs/plugins/callback.md").read_text("utf-8")
FILES = dict(re.findall(r"^`([\w./]+)`:\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A catalogue with the page's callback, and its class."""
    for path, text in {**FILES, "neox_patience/__init__.py": ""}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("neox_patience", "neox_patience.plugin", "neox_patience.callback"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    catalog = load_plugins([EntryPoint("neox-patience", "neox_patience.plugin", GROUP)], {})
    check_callback(catalog, "patience")
    module = import_module("neox_patience.callback")

    return catalog, module.Patience


def remember(self: Any, step: int, values: Any, losses: Any) -> None:
    self.seen = getattr(self, "seen", 0) + len(losses)
    self.lowest = self.lowest if self.seen < 100 else -1.0


def by_time(self: Any, step: int, values: Any, losses: Any) -> Any:
    return Ask("stop", "slow") if values["step_s"] > 1 else None


def by_memory(self: Any, step: int, values: Any, losses: Any) -> Any:
    self.lowest = min(self.lowest, values["memory_gib"])


def by_chance(self: Any, step: int, values: Any, losses: Any) -> Any:
    return Ask("stop", "no luck") if random.random() < 0.1 else None


def changes(self: Any, step: int, values: Any, losses: Any) -> None:
    values["loss"] = 0.0


def drops(self: Any, step: int, values: Any, losses: Any) -> None:
    values.pop("lr")


def waits(self: Any, step: int) -> None:
    torch.ones(3).sum().item()


def synchronizes(self: Any, step: int) -> None:
    torch.cuda.synchronize()


def reduces(self: Any, step: int, values: Any, losses: Any) -> None:
    dist.all_reduce(torch.ones(1))


def gathers(self: Any, step: int) -> None:
    dist.barrier()


def spikes(self: Any, step: int, losses: Any) -> Any:
    bad = [each for each, loss in losses if loss > 8]
    return Ask("rewind", "a jump", bad[0], bad[-1]) if bad else None


def backwards(self: Any, step: int, losses: Any) -> Any:
    return Ask("rewind", "a jump", step, step - 3) if step == 60 else None


def fails_at_nan(self: Any, step: int, values: Any, losses: Any) -> None:
    for _, loss in losses:
        self.place = int(loss)


def forgets(self: Any, state: Any) -> None:
    self.lowest = state["lowest"]


def half(self: Any) -> Any:
    return {"since": self.since}


def in_tuples(self: Any) -> Any:
    return {"since": (0, self.since)}


def by_number(self: Any) -> Any:
    return {1: self.since}


def infinite(self: Any) -> Any:
    return {"lowest": float("inf"), "since": 0}


def as_tensor(self: Any) -> Any:
    return torch.ones(1)


def without_gradients(self: Any, step: int) -> None:
    torch.set_grad_enabled(False)


def in_double(self: Any, step: int, values: Any, losses: Any) -> None:
    torch.set_default_dtype(torch.float64)


FAULTS: dict[str, tuple[str, Any, str]] = {
    "where": ("where", "rank 1", "`where` is rank 0, every rank or collective, not 'rank 1'"),
    "rewinds": ("rewinds", 1, "`rewinds` is True or False"),
    "its own time": ("log", by_time, "all ranks ask the same"),
    "its own memory, kept": ("log", by_memory, "have the same state"),
    "chance": ("log", by_chance, "after restore\\(\\) it asks the same|all ranks ask the same"),
    "changed values": ("log", changes, "it leaves values and losses as they are"),
    "values taken away": ("log", drops, "it leaves values and losses as they are"),
    "a wait": ("step", waits, "step\\(\\) does not wait for the device"),
    "a wait for everything": ("step", synchronizes, "step\\(\\) does not wait for the device"),
    "an all-reduce": ("log", reduces, "it makes no collective call, .* it calls all_reduce"),
    "a barrier": ("step", gathers, "it calls barrier"),
    "an undeclared rewind": ("save", spikes, "has `rewinds = True`"),
    "a save at the end": (
        "end",
        lambda self, step: Ask("save", "last"),
        "saved\\(\\) and end\\(\\) ask nothing",
    ),
    "a save in a step": ("step", lambda self, step: Ask("save", "now"), "step\\(\\) asks nothing but to stop"),
    "a stop at the start": ("start", lambda self, step: Ask("stop", "no"), "start\\(\\) asks nothing but to save"),
    "a bare word": ("evaluated", lambda self, step, values: "stop", "an event returns an Ask or None"),
    "no reason": ("evaluated", lambda self, step, values: Ask("stop", ""), "`why` is one line"),
    "a loss that is not a number": (
        "log",
        fails_at_nan,
        "what the contract allows raises nothing; .*neox_patience|ValueError",
    ),
    "state that is not kept": ("log", remember, "after restore\\(\\)"),
    "half of the state restored": ("restore", forgets, "after restore\\(\\)"),
    "half of the state stored": ("state", half, "raises nothing; it raises KeyError"),
    "tuples": ("state", in_tuples, "state\\(\\) is what JSON holds without a change; .* becomes"),
    "keys that are numbers": ("state", by_number, "state\\(\\) is what JSON holds without a change; .* becomes"),
    "infinity": ("state", infinite, "state\\(\\) is what JSON holds without a change; .*JSON compliant"),
    "a tensor": ("state", as_tensor, "state\\(\\) is what JSON holds without a change; .*not JSON serializable"),
    "gradients that stay off": ("step", without_gradients, "it leaves gradients on"),
    "another default dtype": ("log", in_double, "it leaves torch.set_default_dtype\\(\\) as it was"),
    "text for the log": ("measured", lambda self, step: {"a": "3"}, "measured\\(\\) returns a float for each name"),
    "a name with a line": ("measured", lambda self, step: {"a\nb": 3.0}, "measured\\(\\) returns .*, a word, or None"),
    "another name of a method": ("evaluated", None, "it has a method for one event or more"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(patience: Any, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    catalog, cls = patience
    member, planted, clause = FAULTS[fault]
    if planted is None:
        monkeypatch.delattr(cls, member)
    else:
        monkeypatch.setattr(cls, member, planted, raising=False)
    with torch.enable_grad(), pytest.raises(AssertionError, match=f"(?s){clause}"):
        check_callback(catalog, "patience")
    torch.set_default_dtype(torch.float32)


def evaluates(engine: Any) -> None:
    engine.model.eval()


def decays(engine: Any) -> None:
    with torch.no_grad():
        engine.model.weight.mul_(0.999)


def looks(engine: Any) -> None:
    """What a callback that is not collective may ask an engine."""
    with engine.at_hand(), engine.filled_groups():
        assert engine.shapes().keys() == {"weight", "bias"}
    assert engine.grad_norm() > 0
    assert engine.made_update()
    assert engine.skipped_steps() == 0


def slows(engine: Any) -> None:
    engine.optimizer.param_groups[0]["lr"] *= 0.5


@pytest.mark.parametrize(
    ("act", "clause"),
    [
        (evaluates, "it leaves the model in training"),
        (decays, "it leaves the weights of the model as they are"),
        (slows, "it leaves the learning rate to the schedule"),
        (looks, ""),
    ],
)
def test_a_fault_of_one_with_the_engine_is_named(
    patience: Any, monkeypatch: pytest.MonkeyPatch, act: Any, clause: str
) -> None:
    catalog, cls = patience

    def make(self: Any, run: Any, context: Any, settings: Any, engine: Any) -> None:
        cls.__init__(self, run, context, settings)
        self.engine = engine

    members = {"__init__": make, "log": lambda self, step, values, losses: act(self.engine)}
    monkeypatch.setattr(import_module("neox_patience.callback"), "Patience", type("Engined", (cls,), members))
    with pytest.raises(AssertionError, match=clause) if clause else nullcontext():
        check_callback(catalog, "patience")


def test_a_rewind_over_no_steps_is_named(patience: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, cls = patience
    monkeypatch.setattr(cls, "rewinds", True, raising=False)
    monkeypatch.setattr(cls, "save", backwards, raising=False)
    with pytest.raises(AssertionError, match="a rewind skips steps: 60 to 57"):
        check_callback(catalog, "patience")


def summed(self: Any, step: int, values: Any, losses: Any) -> None:
    total = torch.tensor([float(step)])
    if dist.is_initialized():
        dist.all_reduce(total)
        total /= 2
    self.lowest = min(self.lowest, 1000 + float(total))


def alone(self: Any, step: int, values: Any, losses: Any) -> None:
    if dist.is_initialized() and values["step_s"] < 1:  # on rank 0 alone
        dist.all_reduce(torch.ones(1))


def test_a_collective_callback_runs_on_two_ranks(patience: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, cls = patience
    monkeypatch.setattr(cls, "where", "collective")
    monkeypatch.setattr(cls, "log", summed, raising=False)
    check_callback(catalog, "patience")
    monkeypatch.setattr(cls, "log", by_memory, raising=False)
    with pytest.raises(AssertionError, match="all ranks ask the same and have the same state"):
        check_callback(catalog, "patience")
    monkeypatch.setattr("neox_author.testing.two_ranks.LIMIT_S", 6.0)
    monkeypatch.setattr(cls, "log", alone, raising=False)
    began = time.monotonic()
    with pytest.raises(AssertionError, match="every rank makes the same collective calls"):
        check_callback(catalog, "patience")
    assert time.monotonic() - began < 30
