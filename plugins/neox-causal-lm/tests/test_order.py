import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from neox_causal_lm.order import build_order, count_epochs, split_documents

DATA = Path(__file__).parent / "data"
CASES = json.loads((DATA / "index.json").read_text())

SIZES = st.lists(st.integers(0, 30), min_size=1, max_size=20).filter(any)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"case{case['case']}")
def test_the_order_is_the_one_that_gpt_neox_builds(case):
    reference = np.load(DATA / "index.npz", allow_pickle=False)
    sizes, documents, samples, shuffle = (
        reference[f"{case['case']}_{name}"] for name in ("sizes", "doc", "sample", "shuffle")
    )
    order = build_order(
        sizes, np.arange(case["documents"]), case["seq_length"], num_samples=case["num_samples"], seed=case["seed"]
    )
    for ours, theirs in ((order.documents, documents), (order.samples, samples), (order.shuffle, shuffle)):
        assert np.array_equal(ours, theirs)
    assert order.documents.dtype == documents.dtype
    assert order.shuffle.dtype == shuffle.dtype
    assert len(order.documents) == case["epochs"] * case["documents"]


def walk(sizes: list[int], seq_length: int) -> list[list[int]]:
    """Where samples start, as one finds it by walking through the documents: (document, offset) of each."""
    starts, place, offset = [[0, 0]], 0, 0
    while True:
        wanted = seq_length
        while wanted and place < len(sizes):
            step = min(wanted, sizes[place] - offset)
            wanted, offset = wanted - step, offset + step
            if offset == sizes[place]:
                place, offset = place + 1, 0
        while place < len(sizes) and sizes[place] == 0:
            place += 1
        if place == len(sizes):
            return starts
        starts.append([place, offset])


@pytest.fixture(params=[1, 3, 1 << 15])
def at_once(request, monkeypatch):
    """How many documents are worked on together must make no difference."""
    monkeypatch.setattr("neox_causal_lm.order.AT_ONCE", request.param)


@pytest.mark.usefixtures("at_once")
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=SIZES, seq_length=st.integers(1, 40), num_samples=st.integers(0, 60), seed=st.integers(0, 2**32 - 1))
@example(sizes=[0, 0, 3], seq_length=1, num_samples=1, seed=0)
@example(sizes=[0, 2, 0, 0, 7, 0], seq_length=3, num_samples=9, seed=1)
def test_samples_are_where_a_walk_through_the_documents_finds_them(sizes, seq_length, num_samples, seed):
    sizes = np.array(sizes)
    order = build_order(sizes, np.arange(len(sizes)), seq_length, num_samples, seed)
    assert order.samples.tolist() == walk(sizes[order.documents].tolist(), seq_length)
    assert len(order) == len(order.samples) - 1 >= num_samples


@settings(deadline=None)
@given(sizes=SIZES, seq_length=st.integers(1, 40), num_samples=st.integers(1, 60), seed=st.integers(0, 1000))
def test_every_token_is_read_exactly_once_an_epoch(sizes, seq_length, num_samples, seed):
    sizes = np.array(sizes)
    order = build_order(sizes, np.arange(len(sizes)), seq_length, num_samples, seed)
    epochs = count_epochs(int(sizes.sum()), seq_length, num_samples)
    assert np.array_equal(np.bincount(order.documents, minlength=len(sizes)), np.full(len(sizes), epochs))
    tokens = [(place, offset) for place, d in enumerate(order.documents) for offset in range(sizes[d])]
    read = {}
    for index in range(len(order)):
        sample = []
        for document, offset, length in order.pieces(index):
            end = sizes[document] if length is None else offset + length
            sample += [(document, token) for token in range(offset, end)]
        assert len(sample) == seq_length + 1
        read[int(order.shuffle[index])] = sample
    assert sorted(read) == list(range(len(order)))
    stream = [(int(order.documents[place]), offset) for place, offset in tokens]
    once = [token for sample in sorted(read) for token in read[sample][:-1]]
    assert once == stream[: len(once)]
    assert len(stream) - len(once) <= seq_length, "what is left over is less than a sample"


@settings(deadline=None)
@given(tokens=st.integers(1, 500), seq_length=st.integers(1, 100), num_samples=st.integers(0, 200))
def test_as_many_epochs_as_the_samples_need_and_no_more(tokens, seq_length, num_samples):
    epochs = 1
    while (epochs * tokens - 1) // seq_length < num_samples:
        epochs += 1
    assert count_epochs(tokens, seq_length, num_samples) == epochs


def test_documents_of_another_split_are_not_read():
    order = build_order(np.full(10, 5), np.arange(3, 6), seq_length=4, num_samples=20, seed=1)
    assert set(order.documents.tolist()) == {3, 4, 5}


def test_without_tokens_there_is_no_order():
    with pytest.raises(ValueError, match="no tokens"):
        build_order(np.array([0, 0, 5]), np.arange(2), 4, 1, 0)


@pytest.mark.parametrize(
    ("documents", "shares", "sizes"),
    [
        (100, (90, 5, 5), [90, 5, 5]),
        (100, (9, 0.5, 0.5), [90, 5, 5]),
        (1000, (969, 30, 1), [969, 30, 1]),
        (10, (0.5, 0.25, 0.25), [6, 2, 2]),  # 5, round(2.5) = 2, 2 leaves one document, which falls on the first
        (3, (1, 1, 1), [1, 1, 1]),
        (1, (969, 30, 1), [1, 0, 0]),
        (0, (969, 30, 1), [0, 0, 0]),
        (7, (1, 0, 0), [7, 0, 0]),
    ],
)
def test_documents_are_split_as_gpt_neox_does(documents, shares, sizes):
    assert [len(part) for part in split_documents(documents, shares)] == sizes


@settings(deadline=None)
@given(documents=st.integers(0, 10_000), shares=st.lists(st.floats(0, 100), min_size=3, max_size=3).filter(any))
def test_every_document_is_in_one_split(documents, shares):
    if sum(shares) < 1e-3:
        return
    parts = split_documents(documents, shares)
    assert [document for part in parts for document in part] == list(range(documents))
    assert all(abs(len(part) - share / sum(shares) * documents) <= 2 for part, share in zip(parts, shares, strict=True))


@pytest.mark.usefixtures("at_once")
def test_who_a_sample_is_is_where_it_begins():
    order = build_order(np.array([5, 0, 9, 4]), np.arange(4), 4, 7, seed=3)
    firsts = [next(order.pieces(index))[:2] for index in range(len(order))]
    assert order.starts(np.arange(len(order))).tolist() == [list(first) for first in firsts]
