"""Where `pipe-partition-method: time` cuts a row, and what it measures for that."""

import time
from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest
import torch
from attrs import evolve
from neox_author.testing.outputs import WholeLogits
from neox_deepspeed import balance
from neox_deepspeed.balance import best_cut, cut_by_time
from tiny_engines import make_plan
from torch import nn

from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.parallel.row import RowLayer
from neox_core.plan.runfile import RunPlan

CONTEXT = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)
BLOCKS, BLOCK_S, LOSS_S = 4, 0.01, 0.06


def every_cut(layers: int, stages: int) -> list[tuple[int, ...]]:
    return [(0, *inner, layers) for inner in combinations(range(1, layers), stages - 1)]


def times(costs: list[float], parts: tuple[int, ...]) -> list[float]:
    return [sum(costs[begin:end]) for begin, end in pairwise(parts)]


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_no_other_cut_has_a_faster_slowest_stage(stages: int) -> None:
    """And none as fast is more even."""
    random = Random(stages)
    for _ in range(50):
        costs = [float(random.choice((0, 1, 1, 2, 5, 9))) for _ in range(random.randint(stages, 9))]
        found = best_cut(costs, [True] * len(costs), stages)
        ways = every_cut(len(costs), stages)
        wanted = min((max(some), sum(each * each for each in some)) for some in (times(costs, way) for way in ways))
        assert found in ways
        assert (max(times(costs, found)), sum(each * each for each in times(costs, found))) == wanted


def test_every_stage_gets_something_to_train() -> None:
    costs, trained = [1.0, 1.0, 1.0, 1.0, 9.0], [False, True, True, False, False]
    assert best_cut(costs, [True] * 5, 2) == (0, 4, 5)
    assert best_cut(costs, trained, 2) == (0, 2, 5)
    assert best_cut(costs, [False] * 5, 2) == (0, 4, 5)


def work(seconds: float) -> None:
    """Keep the processor busy."""
    began = time.process_time()
    while time.process_time() - began < seconds:
        pass


class Row:
    """An embedding, blocks, and a head whose loss takes long. calls: of each position."""

    flops_per_token, draws, documents, shared_is_trained_by_all = 1, False, None, False

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.shared: dict[str, nn.Module] = {}

    @property
    def layers(self) -> tuple[RowLayer, ...]:
        def linear() -> nn.Module:
            return nn.Linear(8, 8)

        def embed(module: nn.Module, passed: Any, routing: Any) -> Any:
            return (module(passed[0]),)

        def block(at: int, module: nn.Module, passed: Any) -> Any:
            self.calls[f"layers.{at}"] += 1
            work(BLOCK_S)
            return (passed[0] + module(passed[0]),)

        return (
            RowLayer("Embedding", "embedding", lambda: nn.Embedding(16, 8), embed),
            *(
                RowLayer("Block", f"layers.{at}", linear, lambda module, passed, _, at=at: block(at, module, passed))
                for at in range(BLOCKS)
            ),
            RowLayer("Head", "head", lambda: nn.Linear(8, 16), lambda module, passed, _: passed[0]),
        )

    def outputs(self, last: nn.Module, passed: Any) -> WholeLogits:
        work(LOSS_S)
        return WholeLogits(last(passed))


def plan_of(stages: int) -> RunPlan:
    plan = make_plan()
    return evolve(plan, cluster=evolve(plan.cluster, pipeline_parallel=stages, partition="time"))


def run(layers: Any, passed: Any) -> Any:
    for _, each in layers:
        passed = each(passed, None)
    return passed


def draw(module: nn.Module) -> None:
    names = {name for name, _ in module.named_parameters()}
    assert {"embedding.weight", "layers.0.weight", "head.weight"} <= names


@pytest.mark.usefixtures("process_group")
def test_layers_are_measured_forward_and_backward_and_the_head_with_its_loss() -> None:
    row, state = Row(), torch.get_rng_state()
    cut = cut_by_time(plan_of(2), row, CONTEXT, draw, run)
    assert cut.parts == (0, 5, 6)
    assert row.calls.keys() == {"layers.0"}  # the others are alike
    assert torch.equal(torch.get_rng_state(), state)
    (note,) = cut.notes
    assert note.startswith("the pipeline is cut by time into stages of 5 and 1 layers, ")
    told = dict(each.rsplit(" ", 2)[:2] for each in note.partition("micro-batch: ")[2].split(", "))
    assert list(told) == ["Embedding", "Block", "Head with the loss"]
    assert 1000 * BLOCK_S <= float(told["Block"]) < 1000 * LOSS_S <= float(told["Head with the loss"])


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(("stored", "parts"), [((0, 1, 6), (0, 1, 6)), ((0, 1, 5), (0, 3, 6)), ((), (0, 3, 6))])
def test_the_cut_of_a_checkpoint_is_kept_where_it_fits(stored: tuple[int, ...], parts: tuple[int, ...]) -> None:
    """It does not fit another number of layers."""
    measured = [1.0] * 6, [True] * 6
    with (
        mock.patch.object(balance, "_stored", return_value=stored),
        mock.patch.object(balance, "_measure", return_value=measured),
    ):
        assert cut_by_time(plan_of(2), Row(), CONTEXT, draw, run).parts == parts


@pytest.mark.usefixtures("process_group")
def test_another_number_of_stages_is_said_and_measured_again() -> None:
    measured = [1.0] * 6, [True] * 6
    with (
        mock.patch.object(balance, "_stored", return_value=(0, 1, 6)),
        mock.patch.object(balance, "_measure", return_value=measured),
    ):
        cut = cut_by_time(plan_of(3), Row(), CONTEXT, draw, run)
    assert cut.parts == (0, 2, 4, 6)
    assert cut.notes[0] == "the checkpoint has 2 pipeline stages and this run 3, so layers are measured again"


def test_without_a_checkpoint_nothing_is_stored(tmp_path: Path) -> None:
    plan = plan_of(2)
    assert balance._stored(evolve(plan.checkpoint, save=str(tmp_path), load=str(tmp_path))) == ()


def test_what_is_stored_is_read_as_parts_and_shares() -> None:
    assert balance._parted((0, 3, 5)) == ((0, 3, 5), ())
    assert balance._parted((0, 3, 5, 341, 683)) == ((0, 3, 5), (341, 683))
    assert balance._parted((0, 3, 5, 7, 9)) == ((0, 3, 5, 7, 9), ())
    for nonsense in ((), (1, 3), (0, 3, 3), (0, 5, 3, 341, 683), (3,)):
        assert balance._parted(nonsense) == ((), ())
