"""The rule of the spike guard, against numpy; what it refuses; its contract."""

from typing import Any

import numpy as np
import pytest
from neox_author.testing import assert_light, build, check_callback, load_only
from neox_spike_guard.guard import SpikeGuard
from neox_spike_guard.settings import SpikeGuardSettings

from neox_core.config.report import ProblemsError
from neox_core.errors import RankError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run

RULE = {"enabled": True, "window": 12, "least": 5, "deviations": 3.0, "margin": 0.2}


def guard(**changed: Any) -> SpikeGuard:
    settings: SpikeGuardSettings = build(
        load_only("neox-spike-guard").find("callback", "spike_guard"), spike_guard={**RULE, **changed}
    )
    nothing: Any = None
    return SpikeGuard(nothing, nothing, settings)


def test_listing_is_light() -> None:
    assert_light("neox-spike-guard")


def test_contract() -> None:
    check_callback(load_only("neox-spike-guard"), "spike_guard", spike_guard=RULE)


def test_the_bound_is_that_of_numpy_over_the_last_losses_without_spikes() -> None:
    draw, mine = np.random.default_rng(0), guard(most=1000)
    kept: list[float] = []
    spikes = 0
    for step in range(1, 400):
        loss = float(draw.normal(2.0, 0.1) + (1.0 if draw.random() < 0.05 else 0.0))
        window = np.array(kept[-12:])
        bound = window.mean() + max(0.2, 3 * window.std()) if len(window) >= 5 else np.inf
        asked = mine.log(step, {}, [(step, loss)])
        assert (asked is not None) == (loss > bound), step
        if asked is None:
            kept.append(loss)
        else:
            spikes += 1
            assert (asked.do, asked.first, asked.last) == ("rewind", step - 1, step)
    assert spikes > 5


def test_it_skips_from_before_the_first_spike_to_after_the_last() -> None:
    mine = guard(before=3, after=2)
    mine.log(10, {}, [(step, 2.0) for step in range(1, 11)])
    asked = mine.save(20, [(11, 2.0), (12, 9.0), (13, 2.0), (14, float("inf")), (15, float("nan")), (16, 2.0)])
    assert asked is not None
    assert (asked.first, asked.last) == (9, 17)
    assert asked.why == "the loss of step 12 is 9.0000, above 2.2000"


def test_before_the_least_losses_it_judges_none() -> None:
    mine = guard()
    assert mine.log(4, {}, [(1, 1.0), (2, 50.0), (3, float("nan")), (4, float("inf"))]) is None
    assert mine.window == [1.0, 50.0]


def test_after_the_most_rewinds_it_ends_the_run() -> None:
    mine = guard(most=2)
    mine.log(10, {}, [(step, 2.0) for step in range(1, 11)])
    for _ in range(2):
        asked = mine.log(11, {}, [(11, 9.0)])
        assert asked is not None
        mine.restore({"window": [2.0] * 10, "rewinds_made": 0})  # that of the checkpoint, which knows of none
        mine.rewound(10, asked)
    with pytest.raises(RankError, match=r"the loss of step 11 is 9\.0000, above 2\.2000, after 2 rewinds"):
        mine.log(11, {}, [(11, 9.0)])


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("save=null",), "save: is required"),
        (("no-save-optim=true",), "no-save-optim: contradicts spike_guard"),
        (("spike_guard.least=200",), "spike_guard.least: 200 losses never are in a window of 100"),
        (("spike_guard.window=1",), "spike_guard.window"),
        (("callbacks=[spike_guard]", "spike_guard.enabled=false"), "false contradicts callbacks, which names"),
    ],
)
def test_what_cannot_work_is_refused_before_the_start(sets: tuple[str, ...], said: str, tmp_path: Any) -> None:
    config = tmp_path / "run.yml"
    config.write_text(
        "num-layers: 1\nhidden-size: 8\nnum-attention-heads: 1\nseq-length: 8\nmax-position-embeddings: 8\n"
        "padded-vocab-size: 16\ntrain-iters: 4\ntrain_batch_size: 1\ndevice: cpu\nnum_gpus: 1\nengine: plain\n"
        "optimizer: {type: Adam, params: {lr: 1.0e-3}}\nspike_guard: {enabled: true}\nsave: there\n"
    )
    with pytest.raises(ProblemsError) as caught:
        prepare_run([config], sets, catalog=load_plugins(), start=False)
    assert said in str(caught.value)
