"""What steps read under a curriculum: whichever the ranks, the accumulation and the processes that read ahead."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from neox_author.testing.plans import example_plan

from neox_core.data.batches import build_batches, open_split
from neox_core.data.curriculum import build_curriculum, tokens_of_steps
from neox_core.data.sample_hash import Trail
from neox_core.errors import PluginError
from neox_core.plan.runfile import BatchPlan, ComponentRef, RunPlan

SEQ, STEPS, BATCH = 8, 6, 8
TEXT = np.arange(40 * SEQ + 1)


class OneDocument:
    def __init__(self, prefix: Path) -> None:
        self._text = np.array(json.loads(prefix.read_text()))
        self.sizes = np.array([len(self._text)], dtype=np.int32)
        self.dtype = np.dtype(np.int64)

    def read(self, document: int, offset: int = 0, length: int | None = None) -> Any:
        return self._text[offset : None if length is None else offset + length]


class Backend:
    def __init__(self, settings: Any) -> None:
        self.open = OneDocument

    def files(self, prefix: Path) -> tuple[Path, ...]:
        return (prefix,)


class Descending:
    """Step k reads samples downwards from the pool's last, and one token more than the step before."""

    num_workers = 1
    chooses = True
    routed_layers = frozenset({0})
    seed = 3

    def __init__(self, shape: Any, settings: Any) -> None:
        assert (shape.seq_length, shape.train_batch, shape.train_iters) == (SEQ, BATCH, STEPS)

    def sequence_length(self, step: int) -> int:
        return 2 + step

    def kept_tokens(self, step: int) -> int:
        return 1

    def samples(self, step: int, pool: int) -> Any:
        return (pool - 1 - step * BATCH - np.arange(BATCH)) % pool


class Whole(Descending):
    chooses = False
    num_workers = None


class TooLong(Descending):
    def sequence_length(self, step: int) -> int:
        return SEQ + step


class Halves(Descending):
    def kept_tokens(self, step: int) -> Any:
        return 0.5


class TooFew(Descending):
    def samples(self, step: int, pool: int) -> Any:
        return np.arange(BATCH - 1)


class Beyond(Descending):
    def samples(self, step: int, pool: int) -> Any:
        return np.arange(BATCH) + pool - 1


def make_plan(tmp_path: Path, curriculum: str | None, layout: tuple[int, int, int] = (8, 1, 1)) -> RunPlan:
    """layout: micro-batch, accumulation, data-parallel ranks."""
    prefix = tmp_path / "text"
    prefix.write_text(json.dumps(TEXT.tolist()))
    plan = example_plan(tmp_path / "run", ranks=(1,))
    backend = ComponentRef("data backend", "one", "test", "0", f"{__name__}:Backend")
    chosen = ComponentRef("curriculum", "test", "test", "0", f"{__name__}:{curriculum}")
    return evolve(
        plan,
        objective=ComponentRef("objective", "causal-lm", "neox-causal-lm", "0", "neox_causal_lm.objective:CausalLM"),
        model=evolve(plan.model, seq_length=SEQ, padded_vocab_size=len(TEXT)),
        data=evolve(plan.data, prefix=str(prefix), backend=backend, split=(1.0, 0.0, 0.0)),
        batch=BatchPlan(*layout, train_batch=BATCH),
        train=evolve(plan.train, train_iters=STEPS),
        curriculum=None if curriculum is None else chosen,
    )


def read(plan: RunPlan, first_step: int = 0) -> list[torch.Tensor]:
    """The samples of each step from `first_step` on, those of all ranks, as the run has them: [BATCH, length + 1]."""
    ranks = plan.batch.data_parallel
    curriculum = build_curriculum(plan)
    readers = [
        build_batches(plan, "train", data_rank=rank, data_size=ranks, first_step=first_step, curriculum=curriculum)
        for rank in range(ranks)
    ]
    return [
        torch.cat([next(reader) for _ in range(plan.batch.gradient_accumulation) for reader in readers])
        for _ in range(first_step, STEPS)
    ]


@pytest.mark.parametrize("layout", [(8, 1, 1), (2, 4, 1), (2, 2, 2), (1, 1, 8)])
def test_a_step_reads_the_chosen_samples_in_every_layout(tmp_path: Path, layout: tuple[int, int, int]) -> None:
    plan = make_plan(tmp_path, "Descending", layout)
    everything = open_split(plan, "train", curriculum=None)
    pool = len(TEXT[1:]) // SEQ
    into = np.empty(SEQ + 1, dtype=np.int64)
    one_pass = open_split(evolve(plan, train=evolve(plan.train, train_iters=1)), "train")
    assert len(one_pass) == pool
    assert len(everything) > pool  # another order: the run reads more than one pass
    for step, rows in enumerate(read(plan)):
        assert rows.shape == (BATCH, 2 + step + 1)
        for place, row in enumerate(rows):
            one_pass.read((pool - 1 - step * BATCH - place) % pool, into)
            assert row.tolist() == into[: 2 + step + 1].tolist()


def test_a_resumed_run_reads_on(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, "Descending", (2, 2, 2))
    for rows, later in zip(read(plan)[4:], read(plan, 4), strict=True):
        assert rows.tolist() == later.tolist()


def test_without_a_choice_samples_come_in_order_and_are_cut(tmp_path: Path) -> None:
    whole, cut = read(make_plan(tmp_path, None)), read(make_plan(tmp_path, "Whole"))
    for step, (one, other) in enumerate(zip(whole, cut, strict=True)):
        assert other.tolist() == one[:, : 2 + step + 1].tolist()


def test_the_trail_of_a_run_is_that_of_its_choice(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, "Descending")
    chosen = open_split(plan, "train", curriculum=build_curriculum(plan))
    assert Trail(chosen, BATCH).at(STEPS) != Trail(open_split(plan, "train"), BATCH).at(STEPS)


def test_tokens_of_a_step_are_those_that_it_reads(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, "Whole")
    assert [tokens_of_steps(plan, build_curriculum(plan))(step) for step in (0, 3)] == [2 * BATCH, 5 * BATCH]
    assert tokens_of_steps(plan, None)(3) == SEQ * BATCH


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("TooLong", "step 5 reads 13 tokens of a sample, its layers 1"),
        ("Halves", "step 0 reads 2 tokens of a sample, its layers 0.5"),
        ("TooFew", "its samples of step 0 are not 8 whole numbers below 40"),
        ("Beyond", "its samples of step 0 are not 8 whole numbers below 40"),
    ],
)
def test_a_curriculum_that_breaks_its_contract_is_named(tmp_path: Path, name: str, said: str) -> None:
    plan = make_plan(tmp_path, name)
    with pytest.raises(PluginError) as caught:
        open_split(plan, "train", curriculum=build_curriculum(plan)).identify(np.arange(1))
    assert caught.value.message == f"curriculum test:test 0: {said}"
