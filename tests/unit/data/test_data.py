import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import json_data
import numpy as np
import pytest
import torch
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from json_data import READS, SEQ, by_step, make_plan, read, samples_by_hand
from neox_causal_lm.blend import build_blend
from neox_causal_lm.order import build_order
from neox_causal_lm.samples import INDEX_FOLDER
from neox_data.index import index_data

from neox_core.data.batches import build_batches, open_split
from neox_core.data.sample_hash import Trail
from neox_core.data.samples import rounds_of
from neox_core.errors import DataError
from neox_core.plan.runfile import DataSource


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
sys.path.insert(0, {str(Path(json_data.__file__).parent)!r})
import json_data
from json_data import build_batches, make_plan
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


def test_a_reader_that_is_killed_is_one_clear_error(prefix, monkeypatch):
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)  # how often torch looks, 5 s
    batches = build_batches(
        make_plan(prefix, train_iters=5000, num_workers=1), "train", data_rank=0, data_size=1, first_step=0
    )
    next(batches)
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(DataError, match="a process that reads the data died") as raised:
        list(batches)
    assert "num-workers: 0" in raised.value.hint


def test_the_order_is_kept_beside_the_dataset_and_not_computed_again(prefix, monkeypatch):
    plan = make_plan(prefix, train_iters=37)
    expected = read(plan)
    monkeypatch.setattr("neox_causal_lm.samples.build_order", None)
    assert all(torch.equal(one, other) for one, other in zip(read(plan), expected, strict=True))
    samples = open_split(plan, "train")
    assert not samples.parts[0].order.samples.flags.owndata


def test_an_index_of_other_documents_is_never_used(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(json.dumps([[1] * 20, [2] * 30, [3] * 40, [4] * 9, [5] * 11]))
    plan = make_plan(path, split=(1.0, 0.0, 0.0))
    read(plan)
    path.write_text(json.dumps([[1] * 20, [2] * 31, [3] * 40, [4] * 9, [5] * 11]))  # one token more
    order = open_split(plan, "train").parts[0].order
    expected = build_order(np.array([20, 31, 40, 9, 11]), np.arange(5), SEQ, 20, 1234)
    assert np.array_equal(order.samples, expected.samples)
    for changed in (
        evolve(plan, train=evolve(plan.train, seed=5)),
        evolve(plan, model=evolve(plan.model, seq_length=SEQ + 1)),
        evolve(plan, train=evolve(plan.train, train_iters=100)),
        evolve(plan, data=evolve(plan.data, split=(0.8, 0.2, 0.0))),
    ):
        before = len(list((tmp_path / INDEX_FOLDER).iterdir()))
        open_split(changed, "train")
        assert len(list((tmp_path / INDEX_FOLDER).iterdir())) == before + 1


@pytest.fixture
def blended(tmp_path):
    """A plan that trains on three datasets, whose ids tell which it is."""
    sources = []
    for number, weight in enumerate((3.0, 1.0, 2.0)):
        path = tmp_path / f"set{number}"
        rng = np.random.RandomState(number)
        path.write_text(json.dumps([(100 * number + rng.randint(0, 100, size=17)).tolist() for _ in range(9)]))
        sources.append(DataSource(str(path), weight))
    plan = make_plan(None, layout=(2, 1, 1), train_iters=30)
    return evolve(plan, data=evolve(plan.data, train=tuple(sources), valid=tuple(sources[:1])))


def test_datasets_take_turns_by_their_weights(blended):
    batches = torch.cat(read(blended))
    assert (batches[:, 0] // 100).tolist() == build_blend([0.5, 1 / 6, 1 / 3], 60).turns.tolist()
    assert torch.equal(batches // 100, (batches // 100)[:, :1].expand(-1, SEQ + 1)), "a sample is of one dataset"
    for number, share in enumerate((0.5, 1 / 6, 1 / 3)):  # each in the order that it has alone
        texts = json.loads(Path(blended.data.train[number].prefix).read_text())
        order = build_order(np.full(9, 17), np.arange(9), SEQ, int(np.ceil(60 * share * 1.005)), 1234)
        stream = [token for document in order.documents for token in texts[document]]
        mine = batches[batches[:, 0] // 100 == number]
        expected = [stream[s * SEQ : s * SEQ + SEQ + 1] for s in order.shuffle.astype(int)[: len(mine)]]
        assert mine.tolist() == expected
    assert {int(token) // 100 for token in torch.cat(read(blended, "valid")).flatten()} == {0}


def test_weights_can_follow_from_the_numbers_of_documents(blended):
    texts = json.loads(Path(blended.data.train[1].prefix).read_text())
    Path(blended.data.train[1].prefix).write_text(json.dumps(texts * 9))
    plan = evolve(blended, data=evolve(blended.data, sampler_alpha=1.0))
    turns = (torch.cat(read(plan))[:, 0] // 100).tolist()
    shares = np.array([9 * 90, 81 * 18, 9 * 90]) / (9 * 90 * 2 + 81 * 18)  # p (1 - p), p = 9, 81 and 9 of 99
    assert turns == build_blend(shares.tolist(), 60).turns.tolist()


def test_a_split_that_no_dataset_is_named_for_is_one_clear_error(blended):
    with pytest.raises(DataError, match="no dataset for test") as raised:
        read(blended, "test")
    assert "test-data-paths" in raised.value.hint


def test_a_dataset_of_no_documents_cannot_be_blended(blended):
    Path(blended.data.train[1].prefix).write_text("[]")
    with pytest.raises(DataError, match="set1: has no documents"):
        read(blended)


@pytest.mark.parametrize("kind", ["one", "blended"])
def test_the_hash_of_a_run_says_which_samples_it_had(prefix, blended, kind, monkeypatch):
    plan = make_plan(prefix, layout=(2, 1, 1), train_iters=30) if kind == "one" else blended
    trail = Trail(open_split(plan, "train"), 2)
    hashes = [trail.at(step) for step in range(31)]
    assert len(set(hashes)) == 31
    assert all(0 <= each < 2**48 for each in hashes)
    for at_once in (1, 7, 1000):  # neither how many are looked up together nor which steps are asked for matters
        monkeypatch.setattr("neox_core.data.sample_hash.AT_ONCE", at_once)
        again = Trail(open_split(plan, "train"), 2)
        assert [again.at(step) for step in (30, 3, 11)] == [hashes[step] for step in (30, 3, 11)]
    other = Trail(open_split(evolve(plan, train=evolve(plan.train, seed=99)), "train"), 2)
    assert not {other.at(step) for step in range(1, 31)} & set(hashes)


class Changed:
    """Samples that are those of another run but for one."""

    def __init__(self, samples, index):
        self._samples, self._index = samples, index

    def identify(self, indices):
        who = self._samples.identify(indices)
        who[indices == self._index, 2] += 1
        return who


def test_the_hash_of_a_run_sees_every_step_before(prefix):
    samples = open_split(make_plan(prefix, layout=(2, 1, 1), train_iters=30), "train")
    hashes = {Trail(Changed(samples, index), 2).at(30) for index in range(60)} | {Trail(samples, 2).at(30)}
    assert len(hashes) == 61


@pytest.mark.parametrize("kind", ["one", "blended"])
def test_a_run_that_is_made_longer_keeps_its_order_and_goes_on(prefix, blended, kind):
    short = make_plan(prefix, layout=(2, 1, 1), train_iters=30) if kind == "one" else blended
    longer = evolve(short, train=evolve(short.train, train_iters=90))
    once, twice = rounds_of((), short), rounds_of(rounds_of((), short), longer)
    assert (once, twice) == ((60,), (60, 180))
    assert rounds_of(twice, short) == twice, "fewer iterations change nothing"
    first, whole = open_split(short, "train"), open_split(longer, "train", rounds=twice)
    same = np.arange(60)
    assert np.array_equal(whole.identify(same), first.identify(same))
    assert not np.array_equal(open_split(longer, "train").identify(same), first.identify(same)), (
        "a new run has another order"
    )
    for part in whole.parts:
        assert len(part.order.parts) == 2
        taken, documents = 0, len(set(part.order.parts[0].documents))
        for order in part.order.parts:  # each in whole epochs, all of whose samples are read before the next begins
            assert set(np.bincount(order.documents, minlength=documents)[list(set(order.documents))]) == {
                len(order.documents) // documents
            }
            starts = part.order.starts(np.arange(taken, taken + len(order)))
            assert sorted(map(tuple, starts)) == sorted(map(tuple, order.starts(np.arange(len(order)))))
            taken += len(order)
        assert not np.array_equal(part.order.parts[0].documents[:16], part.order.parts[1].documents[:16])
    batches = list(build_batches(longer, "train", data_rank=0, data_size=1, first_step=30, rounds=twice))
    assert len(batches) == 60
    alone = list(build_batches(short, "train", data_rank=0, data_size=1, first_step=29))
    again = next(build_batches(longer, "train", data_rank=0, data_size=1, first_step=29, rounds=twice))
    assert torch.equal(alone[0], again)


def test_how_often_the_data_is_read_is_known(prefix):
    tokens = sum(map(len, json.loads(prefix.read_text())[:16]))
    samples = open_split(make_plan(prefix, layout=(2, 1, 1), train_iters=30), "train")
    assert samples.epochs == [pytest.approx(60 * SEQ / tokens)]


def test_orders_can_be_made_before_a_run(blended, monkeypatch):
    found = index_data(blended)
    assert {split: len(each.lines) for split, each in found.items()} == {"train": 3, "valid": 1}
    assert found["train"].samples == 60
    monkeypatch.setattr("neox_causal_lm.samples.build_order", None)
    monkeypatch.setattr("neox_causal_lm.samples.build_blend", None)
    assert len(read(blended)) == 30


def test_a_document_longer_than_the_sequence_and_empty_ones_are_read_whole(tmp_path):
    (tmp_path / "long").write_text(json.dumps([[], list(range(100)), [], [500], []]))
    plan = make_plan(tmp_path / "long", train_iters=8, split=(1.0, 0.0, 0.0))  # 16 samples, 6 tokens each, of 101
    tokens = torch.cat(read(plan))[:, :-1].flatten().tolist()
    assert sorted(tokens) == sorted(set(tokens))
    assert len(tokens) == 96


def test_a_validation_that_needs_more_samples_than_there_are_reads_them_again(prefix):
    plan = make_plan(prefix, layout=(2, 1, 1), eval_iters=40)
    samples = open_split(plan, "valid")
    (epochs,) = samples.epochs
    assert epochs > 1
    assert len(samples) >= 80
    assert len(read(plan, "valid")) == 40
