"""Both engines against plain torch loops, in one process: updates, clipping, accumulation."""

import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from attrs import evolve
from neox_deepspeed.start import engine_config
from tiny_engines import CLIPPING, DTYPES, LRS, WEIGHT_DECAY, Tiny, batches, close, make_engine, make_plan
from torch import Tensor, nn

from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import RunPlan
from neox_core.run.optimizer import spared_from_decay

pytestmark = pytest.mark.usefixtures("process_group")


def reference(
    dtype: torch.dtype, accumulation: int, autocast: bool, counts: Mapping[str, float] = MappingProxyType({})
) -> tuple[dict[str, Tensor], list[float], list[float]]:
    """Weights, losses and gradient norms of a loop in plain torch: fp32 masters, a model in `dtype`.

    counts: how often parameters count in the norm, by name, where that is not once.
    """
    model = Tiny().to(dtype)
    masters = {name: weight.detach().float().clone().requires_grad_() for name, weight in model.named_parameters()}
    spared = spared_from_decay(model)
    optimizer = torch.optim.AdamW(
        [
            {
                "params": [master for name, master in masters.items() if name not in spared],
                "weight_decay": WEIGHT_DECAY,
            },
            {"params": [master for name, master in masters.items() if name in spared], "weight_decay": 0.0},
        ]
    )
    stream, losses, norms = iter(batches(len(LRS) * accumulation)), [], []
    for lr in LRS:
        for group in optimizer.param_groups:
            group["lr"] = lr
        mean = 0.0
        for _ in range(accumulation):
            batch = next(stream)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model.run(batch[:, :-1]).cross_entropy(batch[:, 1:])
            (loss / accumulation).backward()
            mean += float(loss.detach()) / accumulation
        losses.append(mean)
        gradients = {name: weight.grad.float() for name, weight in model.named_parameters()}
        squares = [counts.get(name, 1.0) * each.double().square().sum() for name, each in gradients.items()]
        norm = torch.stack(squares).sum().sqrt()
        norms.append(float(norm))
        for name in masters:
            masters[name].grad = gradients[name] * min(1.0, CLIPPING / (float(norm) + 1e-6))
        optimizer.step()
        optimizer.zero_grad()
        model.zero_grad()
        for name, weight in model.named_parameters():
            weight.data.copy_(masters[name])
    return {name: weight.detach() for name, weight in model.named_parameters()}, losses, norms


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize(
    ("dtype", "zero", "autocast"),
    [
        ("fp32", 0, None),
        ("fp32", 1, None),
        ("fp32", 0, "bf16"),
        ("bf16", 0, None),
        ("bf16", 1, None),
        ("fp32", "owned", "bf16"),
        ("bf16", "owned", None),
        ("fp32", "plain", None),
        ("fp32", "plain", "bf16"),
    ],
)
def test_equals_a_plain_loop(dtype: str, zero: int | str, autocast: str | None, accumulation: int) -> None:
    engine = make_engine(make_plan(dtype, zero, accumulation, autocast))
    assert engine.grad_norm() is None
    stream = iter(batches(len(LRS) * accumulation))
    losses, norms = [], []
    for lr in LRS:
        losses.append(float(engine.train_step(stream, lr)))
        norms.append(engine.grad_norm())
    weights, right_losses, right_norms = reference(DTYPES[dtype], accumulation, autocast is not None)
    exact = 1e-2 if dtype == "bf16" else 1e-6 if zero == "plain" else 1e-5
    assert losses == pytest.approx(right_losses, rel=exact)
    assert norms == pytest.approx(right_norms, rel=exact)
    assert min(norms) > CLIPPING  # so clipping was at work
    for name, weight in engine.model.named_parameters():
        torch.testing.assert_close(weight.detach(), weights[name], rtol=exact, atol=exact / 10, msg=name)
    assert engine.skipped_steps() == 0
    assert engine.loss_scale() is None


@pytest.mark.parametrize("zero", [0, "plain"])
def test_an_update_is_clipped_once(zero: int | str) -> None:
    """torch calls the hooks of an optimizer in each wrapped `step`, and wraps that of a parent once it is used."""
    torch.optim.Adam([nn.Parameter(torch.ones(1))])
    engine = make_engine(make_plan(zero=zero))
    engine.train_step(iter(batches(1)), 0.01)
    norm = engine.grad_norm()
    assert norm is not None
    assert norm > CLIPPING


@pytest.mark.parametrize("zero", [0, 1])
def test_fp16_equals_a_plain_loop_and_backs_off(zero: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed advises against fp16 on a CPU, which is slow at it and right: enough to see where the scale goes."""
    from deepspeed.accelerator import get_accelerator

    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)
    engine = make_engine(make_plan("fp16", zero, accumulation=2))
    stream = iter(batches(2 * len(LRS) + 2))
    seen = [(float(engine.train_step(stream, lr)), engine.grad_norm()) for lr in LRS]
    weights, losses, norms = reference(torch.float16, 2, autocast=False)
    assert [loss for loss, _ in seen] == pytest.approx(losses, rel=1e-3)
    assert [norm for _, norm in seen] == pytest.approx(norms, rel=1e-3)
    for name, weight in engine.model.named_parameters():
        torch.testing.assert_close(weight.detach(), weights[name], rtol=1e-3, atol=1e-4, msg=name)
    assert engine.loss_scale() == 1024.0
    engine.model.factor = float("inf")
    engine.train_step(stream, 0.01)
    assert (engine.loss_scale(), engine.skipped_steps()) == (512.0, 1)


@pytest.mark.parametrize(
    ("dtype", "zero"),
    [
        *product(("fp32", "bf16"), (0, 1, 2, "owned")),
        ("fp32", "plain"),
        ("bf16+", 1),
        ("bf16+", 2),
        *product(["fp16"], (0, 1, 2)),
    ],
)
def test_the_norm_counts_parameters_as_often_as_asked(
    dtype: str, zero: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deepspeed.accelerator import get_accelerator

    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)
    plan = make_plan(dtype, zero, accumulation=2)
    asked = [["embed.weight", 0.0], ["norm.*", 40.0], ["out.weight", 2.5]]
    engine = make_engine(evolve(plan, engine={**plan.engine, "gradient_norm_counts": asked}))
    stream = iter(batches(2 * len(LRS)))
    norms = []
    for lr in LRS:
        engine.train_step(stream, lr)
        norms.append(engine.grad_norm())
    counts = {"embed.weight": 0.0, "norm.weight": 40.0, "norm.bias": 40.0, "out.weight": 2.5}
    weights, _, right = reference(DTYPES[dtype], 2, autocast=False, counts=counts)
    exact = 1e-5 if dtype == "fp32" else 1e-2
    assert norms == pytest.approx(right, rel=exact)
    assert min(norms) > CLIPPING
    for name, weight in engine.model.named_parameters():
        torch.testing.assert_close(weight.detach(), weights[name], rtol=exact, atol=exact / 10, msg=name)


@pytest.mark.parametrize(("dtype", "zero"), [("fp32", 1), ("bf16", 0), ("bf16", 1), ("bf16+", 1), ("bf16", "owned")])
def test_masters_begin_as_the_weights(dtype: str, zero: int | str) -> None:
    """DeepSpeed has its optimizers allocate their state by a step, which would decay the masters."""
    engine = make_engine(make_plan(dtype, zero))
    weights = dict(engine.model.named_parameters())
    assert len(engine.shards) == 4
    for shard in engine.shards:
        weight = weights[shard.name].detach().float().reshape(-1)[shard.first : shard.first + shard.count]
        assert torch.equal(shard.part_of(shard.stepped), weight)
        assert shard.stepped.dtype == torch.float32


def test_deepspeed_only_averages_where_ranks_own_parameters() -> None:
    plan = make_plan("bf16", "owned")
    config = engine_config(plan)
    assert config["zero_optimization"]["stage"] == 0
    assert (config["communication_data_type"], config["gradient_clipping"]) == ("bf16", 0.0)
    assert "bf16" not in config
    config = engine_config(evolve(plan, engine={**plan.engine, "communication_data_type": "fp32"}))
    assert config["communication_data_type"] == "fp32"


@pytest.mark.parametrize("zero", [0, "plain"])
def test_evaluation_is_calm_and_changes_nothing(zero: int | str) -> None:
    engine = make_engine(make_plan(zero=zero))
    engine.model.dropout = 0.5
    state = torch.get_rng_state()
    first, second = engine.evaluate(batches(2)), engine.evaluate(batches(2))
    assert [float(loss) for loss in first] == [float(loss) for loss in second]
    assert not first[0].requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    assert engine.model.training


def test_the_engine_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Not through its logger, not past it."""
    engine = make_engine(make_plan("bf16+", 1))
    engine.train_step(iter(batches(1)), 0.01)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("dtype", "zero"), [("fp32", 0), ("fp32", 1), ("fp32", "owned"), ("fp32", "plain"), ("bf16", 0), ("bf16", 2)]
)
def test_a_closed_engine_needs_no_collection_to_go(dtype: str, zero: int | str) -> None:
    """Until the next one, which a rank may never come to, the weights and the optimizer's state would stay."""
    assert close([trained(make_plan(dtype, zero))]) is None


def trained(plan: RunPlan, *groups: Groups) -> Any:
    engine = make_engine(plan, *groups)
    for lr in LRS:
        engine.train_step(iter(batches(1)), lr)
    return engine


OF_TWO: list[tuple[str, int | str]] = [("fp32", 0), ("fp32", "owned"), ("fp32", "plain")]


def rank_main(rank: int, folder: str) -> None:
    """One of two ranks, which average their gradients."""
    os.environ["LOCAL_RANK"] = "0"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    groups, kept = Groups(dist.group.WORLD, dist.group.WORLD, rank, 2), []
    for kind in OF_TWO:
        plan = make_plan(*kind)
        plan = evolve(plan, engine={**plan.engine, "train_batch_size": 2})
        kept += [kind] if close([trained(plan, groups)]) is not None else []
    dist.destroy_process_group()
    sys.exit(f"need a collection: {kept}" if kept else 0)


@pytest.mark.ranks
def test_nor_does_one_of_two_ranks(tmp_path: Path) -> None:
    ranks = [subprocess.Popen([sys.executable, __file__, str(rank), str(tmp_path)]) for rank in range(2)]
    assert [each.wait(timeout=300) for each in ranks] == [0, 0]


if __name__ == "__main__":
    rank_main(int(sys.argv[1]), sys.argv[2])
