"""The average against its closed form in float64, what it refuses, its contract. Runs: tests/e2e/test_ema.py."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from neox_author.testing import assert_light, build, check_callback, load_only
from neox_ema.average import STATE, Average

from neox_core.config.report import ProblemsError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run

BLOCK = {"enabled": True, "decay": 0.9}


class Nested(torch.optim.SGD):
    """An optimizer whose step calls that of its parent: torch calls the hooks around both."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def average_of(optimizer: torch.optim.Optimizer, **changed: Any) -> Average:
    entry = load_only("neox-ema").find("callback", "ema")
    nothing: Any = None
    engine: Any = SimpleNamespace(optimizer=optimizer)
    return Average(nothing, nothing, build(entry, ema={**BLOCK, **changed}), engine)


def test_listing_is_light() -> None:
    assert_light("neox-ema")


def test_contract() -> None:
    check_callback(load_only("neox-ema"), "ema", ema=BLOCK)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, Nested])
def test_it_is_the_sum_of_all_weights_in_float64(kind: Any) -> None:
    draw = torch.Generator().manual_seed(0)
    weights = [
        torch.nn.Parameter(torch.randn(5, 3, generator=draw)),
        torch.nn.Parameter(torch.randn(7, generator=draw)),
    ]
    optimizer = kind(weights, lr=0.1)
    average_of(optimizer).start(0)
    seen = [[each.detach().double() for each in weights]]
    for step in range(30):
        weights[0].grad = torch.randn(5, 3, generator=draw)
        weights[1].grad = torch.randn(7, generator=draw) if step % 3 else None  # an update that is left out
        optimizer.step()
        seen.append([each.detach().double() for each in weights])
    for index, each in enumerate(weights):
        updates = [step for step in range(30) if index == 0 or step % 3]
        count = len(updates)
        exact = 0.9**count * seen[0][index]
        for place, step in enumerate(updates, 1):
            exact += 0.1 * 0.9 ** (count - place) * seen[step + 1][index]
        torch.testing.assert_close(optimizer.state[each][STATE].double(), exact, rtol=0, atol=1e-6)


def test_an_average_of_another_step_is_not_continued() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.5)
    optimizer.state[weight][STATE] = torch.full((3,), 9.0)
    mine = average_of(optimizer)
    mine.restore({"step": 5, "decay": 0.9})
    mine.start(8)  # a run without ema has made three steps since
    assert STATE not in optimizer.state[weight]
    optimizer.state[weight][STATE] = torch.full((3,), 9.0)
    mine.restore({"step": 8, "decay": 0.9})
    mine.start(8)
    assert optimizer.state[weight][STATE].tolist() == [9.0] * 3


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("ema.decay=1",), "ema.decay"),
        (("ema.decay=0",), "ema.decay"),
        (("save=there", "no-save-optim=true"), "no-save-optim: contradicts ema"),
        (("ema.enabled=false", "evaluators=[ema]"), "evaluators: ema evaluates the average of the weights, and none"),
        (("engine=deepspeed", "zero_optimization.stage=3"), "zero_optimization.stage: 3 contradicts ema"),
        (
            ("engine=deepspeed", 'zero_optimization={"stage": 2, "offload_optimizer": {"device": "cpu"}}'),
            "offload_optimizer: contradicts ema",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_start(sets: tuple[str, ...], said: str, tmp_path: Path) -> None:
    config = tmp_path / "run.yml"
    config.write_text(
        "num-layers: 1\nhidden-size: 8\nnum-attention-heads: 1\nseq-length: 8\nmax-position-embeddings: 8\n"
        "padded-vocab-size: 16\ntrain-iters: 4\ntrain_batch_size: 1\ndevice: cpu\nnum_gpus: 1\nengine: plain\n"
        "data-path: none\ndata-impl: mmap\n"
        "optimizer: {type: Adam, params: {lr: 1.0e-3}}\nema: {enabled: true}\n"
    )
    prepare_run([config], ("evaluators=[ema]",), catalog=load_plugins(), start=False)
    with pytest.raises(ProblemsError) as caught:
        prepare_run([config], sets, catalog=load_plugins(), start=False)
    assert said in str(caught.value)
