import math
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neox_causal_lm.blend import SOURCE, build_blend, normalise, samples_of_each, weights_by_documents
from neox_kernels.compile_c import COMPILERS, native

WEIGHTS = st.lists(st.floats(0.01, 10), min_size=1, max_size=6)


def published(weights, count):
    """build_blending_indices of GPT-NeoX, as it reads: the first dataset whose error is largest."""
    weights, taken, turns, places = np.array(weights), np.zeros(len(weights)), [], []
    for sample in range(count):
        turn = int(np.argmax(weights * max(sample, 1) - taken))
        turns.append(turn)
        places.append(int(taken[turn]))
        taken[turn] += 1
    return turns, places


@settings(deadline=None, max_examples=60)
@given(weights=WEIGHTS, count=st.integers(1, 200))
def test_turns_are_those_of_gpt_neox(weights, count):
    blend = build_blend(normalise(weights), count)
    turns, places = published(normalise(weights), count)
    assert blend.turns.tolist() == turns
    assert blend.places.tolist() == places


@pytest.mark.parametrize(
    "weights",
    [(1,), (1, 1), (1, 1, 1), (0.1, 0.2, 0.7), (3, 1), (1, 1e-6), (1 / 3, 0.3, 0.21, 0.1), tuple(range(1, 101))],
)
def test_compiled_turns_are_the_same(weights):
    """Also where datasets lag equally but for the rounding, as equal weights do."""
    if any(map(shutil.which, COMPILERS)):
        assert native(SOURCE, "-ffp-contract=off") is not None
    python, compiled = (build_blend(normalise(weights), 20_000, compile_from=n) for n in (20_001, 0))
    assert np.array_equal(compiled.turns, python.turns)
    assert np.array_equal(compiled.places, python.places)


def test_turns_by_hand():
    assert build_blend([0.5, 0.5], 6).turns.tolist() == [0, 1, 0, 1, 0, 1]
    # lags before each sample: .7 .2 .1; -.3 .2 .1; .4 -.6 .2; .1 -.4 .3; .8 -.2 -.6; .5 0 -.5
    assert build_blend([0.7, 0.2, 0.1], 6).turns.tolist() == [0, 1, 0, 2, 0, 0]


@settings(deadline=None, max_examples=60)
@given(weights=WEIGHTS, count=st.integers(1, 200))
def test_each_dataset_gets_its_share_and_every_sample_once(weights, count):
    weights = normalise(weights)
    blend = build_blend(weights, count)
    assert np.array_equal(build_blend(weights, count // 2).turns, blend.turns[: count // 2])
    for dataset, weight in enumerate(weights):
        mine = blend.places[blend.turns == dataset]
        assert mine.tolist() == list(range(len(mine)))
        assert len(mine) <= weight * count + 1
    assert all(
        needed >= np.sum(blend.turns == dataset) and needed >= math.ceil(weights[dataset] * count * 1.005)
        for dataset, needed in enumerate(samples_of_each(weights, blend.turns))
    )


@pytest.mark.parametrize(
    ("counts", "alpha", "weights"),
    [
        ([7], 0.3, [1.0]),
        ([5, 5], 0.3, [0.5, 0.5]),
        ([1, 3], 1.0, [0.5, 0.5]),  # 1/4 * 3/4 and 3/4 * 1/4
        ([1, 3], 0.0, [0.75, 0.25]),  # 1/2 * 3/4 and 1/2 * 1/4
        ([1, 1, 2], 2.0, [1 / 16 * 3 / 4 / (7 / 32)] * 2 + [1 / 4 * 1 / 2 / (7 / 32)]),
    ],
)
def test_weights_by_documents_are_those_of_gpt_neox(counts, alpha, weights):
    assert weights_by_documents(counts, alpha) == pytest.approx(weights, rel=1e-12)
