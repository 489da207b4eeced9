"""The engine keeps every clause, and each planted fault is named. Ranks are forked from this process."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from neox_author.testing import check_engine, engines, load_only
from neox_author.testing.clauses import heard
from neox_plain import average, base_engine, criterion
from neox_plain import clip as clipping
from neox_plain.engine import Engine
from neox_plain.maker import Plain

from neox_core.hooks.catalog import Catalog
from neox_core.parallel.groups import Groups

PATCHES = pytest.MonkeyPatch
pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_only("neox-plain")


def test_every_clause_is_tried(catalog: Catalog) -> None:
    told: dict[str, str] = {}
    with heard(told.setdefault):
        check_engine(catalog, "plain")
    for clause in (
        "two data-parallel ranks trains as one rank",
        "TP 2 trains as one rank",
        f"{engines.SPREAD} trains as one rank",
    ):
        assert told[clause] == ""
    assert "zero_optimization" in told["ZeRO 3 on two ranks trains as one rank"]
    assert "has no pipeline" in told["PP 2 trains as one rank"]


def replaced(name: str, new: Callable[..., Any], owner: Any = Engine) -> Callable[[PATCHES], None]:
    return lambda patch: patch.setattr(owner, name, new)


def summed(self: Any, loss: Any, micro_step: int) -> None:
    loss.backward()


def unclipped(self: Any, largest: float) -> Any:
    return CLIP(self, 1e9)


CLIP = Engine._clip
STEP, EVALUATE = Engine.train_step, Engine.evaluate


def greedy(self: Any, batches: Any, lr: float) -> Any:
    loss = STEP(self, batches, lr)
    next(batches, None)
    return loss


def noisy(self: Any, batches: Any, lr: float) -> Any:
    torch.rand(1)
    return STEP(self, batches, lr)


def late(self: Any, batches: Any, lr: float) -> Any:
    """The modules of the model are told the step after it."""
    told = self._step_told
    self._step_told = [lambda step, tell=tell: tell(step + 1) for tell in told]
    loss = STEP(self, batches, lr)
    self._step_told = told
    return loss


def in_training(self: Any, batches: Any) -> Any:
    self.model.eval = self.model.train
    return EVALUATE(self, batches)


def with_gradient(self: Any, batches: Any) -> Any:
    losses = EVALUATE(self, batches)
    self.model.eval()
    return losses


def careless(patch: PATCHES) -> None:
    """A gradient that is not finite is stepped with."""
    patch.setattr(base_engine.torch, "isfinite", lambda norm: torch.ones((), dtype=torch.bool))


def unaveraged(self: Any) -> None:
    """Each rank keeps its own gradients."""
    self._running = False
    while len(self._sent) < len(self._buckets):
        self._send()
    for bucket, (work, flat) in zip(self._buckets, self._sent, strict=True):
        work.wait()
        for each, part in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
            each.grad = part.view_as(each)
    self._sent = []


def norm_after_clipping(self: Any) -> Any:
    return None if self._norm is None else min(float(self._norm), self._clipping)


def own_labels(sums: Any, groups: Groups) -> Any:
    """A missing all-reduce: the labels that count on the other ranks are not counted."""
    return SHARES(sums, Groups(None, None, 0, 1))


SHARES = criterion.shares_of


def half_of_the_shards(patch: PATCHES) -> None:
    make = Engine.__init__

    def fewer(self: Any, *args: Any) -> None:
        make(self, *args)
        self.shards = self.shards[1:]

    patch.setattr(Engine, "__init__", fewer)


SUMMED = "        dist.all_reduce(of_parts, group=spread.group)\n"


def other_norm(text: str) -> Callable[[PATCHES], None]:
    """The norm with `text` in place of the sum over the ranks that have parts of a weight."""

    def plant(patch: PATCHES) -> None:
        source = inspect.getsource(clipping)
        assert SUMMED in source
        scope: dict[str, Any] = {}
        exec(compile(source.replace(SUMMED, text), "fault", "exec"), scope)
        patch.setattr(base_engine, "clip", scope["clip"])

    return plant


FAULTS: dict[str, tuple[Callable[[PATCHES], None], str]] = {
    "gradients of micro-batches are summed": (
        replaced("_backward", summed),
        "^it trains .*: grad_norm",
    ),
    "updates are not clipped": (replaced("_clip", unclipped), "^it trains as a plain loop does: the losses"),
    "the norm is told after clipping": (
        replaced("grad_norm", norm_after_clipping),
        "^it trains .*: grad_norm.. before",
    ),
    "a step reads one batch too many": (
        replaced("train_step", greedy),
        "^train_step.. reads the micro-batches",
    ),
    "a step draws from torch's generator": (replaced("train_step", noisy), "^a step draws no numbers from torch's own"),
    "modules are told the next step": (
        replaced("train_step", late),
        r"^modules with `at_step` .*; \[1, 2, 3, 4\]",
    ),
    "evaluation drops out": (replaced("evaluate", in_training), "^evaluate.. runs the model in evaluation"),
    "evaluation ends training": (replaced("evaluate", with_gradient), "^evaluate.. leaves the model in training"),
    "the place in the run is forgotten": (
        replaced("start_at", lambda self, samples: None),
        "^the keys .*start_at|^modules",
    ),
    "an infinite gradient is stepped with": (careless, "^made_update.. is False after a gradient that is not finite"),
    "ranks do not average": (
        replaced("finish", unaveraged, average.GradientAverage),
        "^two data-parallel ranks",
    ),
    "labels count alike in each micro-batch": (
        replaced("_weights", lambda self, batch: None, criterion.Criterion),
        "^it trains as a plain loop does: the losses",
    ),
    "each rank counts its own labels": (
        replaced("shares_of", own_labels, criterion),
        "^two data-parallel ranks trains as one rank: the losses",
    ),
    "a spread weight counts twice in the norm": (
        other_norm(2 * SUMMED),
        r"^a weight spread over .*: (the losses|grad_norm)",
    ),
    "a part of a spread weight stands for all": (other_norm(""), r"^a weight spread over .*: grad_norm"),
    "parts of a spread weight are averaged": (
        replaced("spread_of", lambda parameter: None, average),
        r"^a weight spread over .*: ",
    ),
    "a parameter is not stored": (half_of_the_shards, "^each element of a parameter is in `shards` once"),
    "metrics are sums": (
        replaced("metrics", lambda self: {name: each * 2 for name, each in self._criterion.metrics().items()}),
        "^metrics.. are means since the last call",
    ),
    "metrics of earlier evaluations count": (
        replaced("evaluation_metrics", lambda self: self._criterion.metrics()),
        "^evaluation_metrics.. are means of the last evaluation",
    ),
    "changed options are not told": (
        replaced("changed_options", lambda self: [{} for _ in self.optimizer.param_groups]),
        "^changed_options.. tells the options",
    ),
    "changed options are not taken over": (
        replaced("change_options", lambda self, options: None),
        "^change_options.. takes over what",
    ),
    "a state that starts at 1": (
        replaced("new_state", lambda self, shard, state, dtype: torch.ones_like(shard.stepped, dtype=dtype)),
        "^new_state.. gives zeros",
    ),
    "no parameter is stored": (replaced("stores", lambda self, name: False), "^stores.. is True of each parameter"),
    "timings are text": (replaced("timings", lambda self: {"step": "3 ms"}), "^timings.. gives floats"),
    "a scale of the loss in fp32": (replaced("loss_scale", lambda self: 1.0), "^loss_scale.. is None, unless"),
    "a peak without its source": (
        replaced("find_peak", lambda self, device, product: 1e12, Plain),
        "^find_peak.. gives a Peak, not a float",
    ),
    "skipped steps start at 0": (replaced("count_skipped", lambda self, steps: None), "^count_skipped.. is where"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault: str, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, said = FAULTS[fault]
    plant(monkeypatch)
    monkeypatch.setattr(engines, "check_light", lambda target: None)  # which starts a process
    with pytest.raises(AssertionError, match=said):
        check_engine(catalog, "plain")
