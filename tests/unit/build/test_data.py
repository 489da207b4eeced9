import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neox_core.build.data import build_batches, build_tokenizer
from neox_core.build.order import build_order
from neox_core.errors import DataError
from neox_core.plan.runfile import (
    BatchPlan,
    CheckpointPlan,
    ClusterPlan,
    ComponentRef,
    DataPlan,
    Host,
    ModelPlan,
    OptimPlan,
    PrecisionPlan,
    RunPlan,
    TrainPlan,
)

SEQ = 6
VOCAB = 1000
READS: list[int] = []


class JsonSource:
    """Documents in a JSON file: a data backend that owes nothing to the real ones."""

    def __init__(self, prefix) -> None:
        self._documents = json.loads(prefix.read_text())
        self.sizes = np.array([len(document) for document in self._documents], dtype=np.int32)
        self.dtype = np.dtype(np.int64)

    def read(self, document, offset=0, length=None):
        READS.append(document)
        end = None if length is None else offset + length
        return np.array(self._documents[document][offset:end], dtype=np.int64)


class JsonBackend:
    def __init__(self, settings) -> None:
        self.open = JsonSource


class Words:
    vocab_size, eod = 130, 0

    def __init__(self, settings) -> None:
        self.settings = settings


UNUSED = ComponentRef("norm", "none", "test", "0", "nowhere:Nothing")


def make_plan(prefix, *, layout=(2, 1, 1), train_iters=10, eval_iters=3, num_workers=0, split=(0.8, 0.2, 0.0)):
    """layout: micro-batch, accumulation, data-parallel ranks."""
    micro, accumulation, ranks = layout
    return RunPlan(
        model=ModelPlan(
            num_layers=1,
            hidden_size=8,
            num_attention_heads=1,
            intermediate_size=32,
            seq_length=SEQ,
            max_position_embeddings=SEQ,
            norm=UNUSED,
            activation=UNUSED,
            position=UNUSED,
            padded_vocab_size=VOCAB,
            make_vocab_size_divisible_by=128,
            tie_embeddings=True,
            parallel_residual=False,
            residual_post_norm=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            init_method="normal",
            output_init_method="normal",
            init_std=0.02,
            attention_softmax_in_fp32=False,
        ),
        batch=BatchPlan(micro, accumulation, ranks, micro * accumulation * ranks),
        data=DataPlan(
            None if prefix is None else str(prefix),
            split,
            ComponentRef("data backend", "json", "test", "0", f"{__name__}:JsonBackend"),
            None,
            num_workers,
        ),
        optim=OptimPlan(UNUSED, UNUSED, 1e-3, 0, 0, 10, 0, 1, 0),
        precision=PrecisionPlan("fp32", None),
        train=TrainPlan(train_iters, None, 5, eval_iters, 1, 1234, "stop", None, None),
        checkpoint=CheckpointPlan(None, None, None, "must", None, False, True, True, True, True, "must-match"),
        cluster=ClusterPlan((Host("localhost", 1),), "cpu", "gloo", "127.0.0.1", 29500, None),
        launcher=UNUSED,
        monitors=(),
        engine={},
        plugins={},
        run_dir="runs",
        neox_version="0",
    )


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    rng = np.random.RandomState(0)
    documents = [rng.randint(0, VOCAB, size=rng.randint(1, 30)).tolist() for _ in range(20)]
    path = tmp_path_factory.mktemp("data") / "tokens"
    path.write_text(json.dumps(documents))
    return path


def read(plan, split="train", rank=0, first_step=0):
    return list(build_batches(plan, split, data_rank=rank, data_size=plan.batch.data_parallel, first_step=first_step))


def by_step(plan, first_step=0):
    """[steps, train_batch, seq + 1]: the samples of each step in global order, put together from all ranks."""
    ranks = [read(plan, rank=rank, first_step=first_step) for rank in range(plan.batch.data_parallel)]
    micro_batches = torch.cat([torch.cat(same_time) for same_time in zip(*ranks, strict=True)])
    return micro_batches.reshape(-1, plan.batch.train_batch, SEQ + 1)


def samples_by_hand(prefix, documents, num_samples):
    """Samples cut out of the stream that GPT-NeoX's index describes."""
    texts = json.loads(prefix.read_text())
    sizes = np.array([len(text) for text in texts])
    order = build_order(sizes, np.array(documents), SEQ, num_samples, 1234)
    stream = [token for document in order.documents for token in texts[document]]
    return torch.tensor([stream[s * SEQ : s * SEQ + SEQ + 1] for s in order.shuffle.astype(int)[:num_samples]])


def test_a_step_holds_the_samples_of_gpt_neox_order(prefix):
    plan = make_plan(prefix, layout=(2, 1, 1), train_iters=30)
    batches = read(plan)
    assert len(batches) == 30
    assert all(batch.shape == (2, SEQ + 1) and batch.dtype == torch.int64 for batch in batches)
    assert torch.equal(torch.cat(batches), samples_by_hand(prefix, range(16), 60))


@given(factors=st.permutations([2, 2, 3]), cut=st.tuples(st.integers(0, 3), st.integers(0, 3)), first=st.integers(0, 4))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_a_step_is_the_same_whatever_the_ranks_and_the_accumulation(prefix, factors, cut, first):
    a, b = sorted(cut)
    layout = tuple(int(np.prod(part)) for part in (factors[:a], factors[a:b], factors[b:]))
    expected = by_step(make_plan(prefix, layout=(12, 1, 1), train_iters=5))
    assert torch.equal(by_step(make_plan(prefix, layout=layout, train_iters=5), first), expected[first:])


def test_a_rank_takes_its_rows_of_each_micro_batch(prefix):
    plan = make_plan(prefix, layout=(2, 2, 3), train_iters=1)
    expected = samples_by_hand(prefix, range(16), 12)
    for rank in range(3):
        first, second = read(plan, rank=rank)
        assert torch.equal(first, expected[2 * rank : 2 * rank + 2])
        assert torch.equal(second, expected[6 + 2 * rank : 6 + 2 * rank + 2])


def test_resuming_reads_nothing_of_what_came_before(prefix):
    plan = make_plan(prefix, train_iters=2000, layout=(1, 1, 1))
    READS.clear()
    assert len(read(plan, first_step=1998)) == 2
    assert len(READS) <= 2 * (SEQ + 1)


def test_a_finished_run_has_no_more_batches(prefix):
    assert read(make_plan(prefix), first_step=10) == []


@pytest.mark.parametrize("num_workers", [1, 2])
def test_processes_that_read_ahead_change_nothing(prefix, num_workers):
    plan = make_plan(prefix, layout=(2, 2, 1), train_iters=20)
    ahead = evolve(plan, data=evolve(plan.data, num_workers=num_workers))
    for first_step in (0, 7):
        expected, batches = read(plan, first_step=first_step), read(ahead, first_step=first_step)
        assert len(batches) == len(expected)
        assert all(torch.equal(one, other) for one, other in zip(batches, expected, strict=True))


def test_reading_draws_nothing_from_the_generator_of_the_model(prefix):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    read(make_plan(prefix, num_workers=1))
    read(make_plan(prefix), "valid")
    assert torch.equal(torch.get_rng_state(), before)


def test_every_validation_sees_the_same_samples(prefix):
    plan = make_plan(prefix, layout=(2, 2, 1), eval_iters=3)
    first, second = read(plan, "valid"), read(plan, "valid")
    assert len(first) == 3, "one micro-batch an iteration"
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert torch.equal(torch.cat(first), samples_by_hand(prefix, range(16, 20), 12)[:6])


def test_another_seed_is_another_order(prefix):
    plan = make_plan(prefix, train_iters=30)
    other = evolve(plan, train=evolve(plan.train, seed=4321))
    assert not torch.equal(torch.cat(read(plan)), torch.cat(read(other)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_leaves_the_reading_to_the_rank(prefix, number):
    plan = make_plan(prefix, train_iters=200, num_workers=1)
    batches = build_batches(plan, "train", data_rank=0, data_size=1, first_step=0)
    seen = [next(batches)]
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid, number)
    seen += batches
    assert len(seen) == 200


def test_a_rank_that_leaves_by_a_traceback_takes_its_processes_along(prefix):
    code = f"""
import multiprocessing, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_data import build_batches, make_plan
batches = build_batches(make_plan(Path(sys.argv[1]), num_workers=1), "train", data_rank=0, data_size=1, first_step=0)
next(batches)
print(multiprocessing.active_children()[0].pid, flush=True)
raise RuntimeError("in a step")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(prefix)], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "in a step" in done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_id_outside_of_the_vocabulary_is_one_clear_error(prefix, num_workers):
    plan = make_plan(prefix, train_iters=100, num_workers=num_workers)
    texts = json.loads(prefix.read_text())
    place = next(i for i, text in enumerate(texts) if len(text) > 12)
    texts[place][11] = VOCAB
    broken = prefix.with_name("broken")
    broken.write_text(json.dumps(texts))
    with pytest.raises(DataError) as raised:
        read(evolve(plan, data=evolve(plan.data, prefix=str(broken))))
    assert raised.value.message == f"{broken}: document {place}, token 11: id 1000 is not among the model's 1000"
    assert raised.value.hint
    assert not multiprocessing.active_children(), "the reading processes are gone"


def test_without_data_path_there_is_one_clear_error():
    with pytest.raises(DataError, match="no dataset to read") as raised:
        read(make_plan(None))
    assert "data-path" in raised.value.hint


def test_a_split_without_documents_is_one_clear_error(prefix):
    with pytest.raises(DataError, match=r"none of its 20 documents is for test \(split 0.8, 0.2, 0\)") as raised:
        read(make_plan(prefix), "test")
    assert "give test a share in split" in raised.value.hint
    with pytest.raises(DataError, match="none of its 20 documents is for valid") as raised:
        read(make_plan(prefix, split=(0.99, 0.01, 0.0)), "valid")
    assert "larger share" in raised.value.hint


def test_documents_without_tokens_are_one_clear_error(tmp_path):
    (tmp_path / "empty").write_text("[[], [], [1, 2]]")
    with pytest.raises(DataError, match="the 2 documents for train hold no token"):
        read(make_plan(tmp_path / "empty", split=(0.67, 0.33, 0.0)))


def test_the_tokenizer_is_built_from_the_plan(prefix):
    plan = make_plan(prefix)
    assert build_tokenizer(plan) is None
    words = ComponentRef("tokenizer", "words", "test", "0", f"{__name__}:Words")
    assert isinstance(build_tokenizer(evolve(plan, data=evolve(plan.data, tokenizer=words))), Words)


def test_the_vocabulary_comes_from_the_tokenizer_where_the_plan_has_no_size(prefix):
    plan = make_plan(prefix)
    words = ComponentRef("tokenizer", "words", "test", "0", f"{__name__}:Words")
    plan = evolve(plan, data=evolve(plan.data, tokenizer=words), model=evolve(plan.model, padded_vocab_size=None))
    with pytest.raises(DataError, match="is not among the model's 256"):
        read(plan)
