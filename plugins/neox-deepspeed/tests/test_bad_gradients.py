"""Gradients that are not finite: no weight moves, and the first bad parameter is found."""

from itertools import product
from typing import Any

import pytest
import torch
from tiny_engines import batches, make_engine, make_plan
from torch import Tensor, nn

pytestmark = pytest.mark.usefixtures("process_group")


@pytest.mark.parametrize(("dtype", "zero"), [("fp32", "plain"), *product(("fp32", "bf16"), (0, 1, "owned"))])
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_gradient_gone_bad_moves_no_weight(dtype: str, zero: int | str, policy: str) -> None:
    engine = make_engine(make_plan(dtype, zero, on_nonfinite_loss=policy))
    stream = iter(batches(5))
    engine.train_step(stream, 0.01)
    before = {name: weight.detach().clone() for name, weight in engine.model.named_parameters()}
    engine.model.factor = float("nan")
    assert not torch.isfinite(engine.train_step(stream, 0.01))
    assert engine.made_update() is False
    assert all(torch.equal(weight, before[name]) for name, weight in engine.model.named_parameters())
    assert engine.skipped_steps() == 1
    engine.model.factor = 1.0
    assert torch.isfinite(engine.train_step(stream, 0.01))
    moved = [not torch.equal(weight, before[name]) for name, weight in engine.model.named_parameters()]
    assert all(moved)
    assert engine.made_update() is True
    assert engine.skipped_steps() == 1


@pytest.mark.parametrize("zero", [0, "plain"])
def test_on_a_gpu_the_device_knows_that_an_update_was_bad(zero: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(make_plan(zero=zero))
    monkeypatch.setattr(engine, "_looks", False)
    stream, seen = iter(batches(2)), []
    for factor in (1.0, float("nan")):
        engine.model.factor = factor
        engine.train_step(stream, 0.01)
        made = engine.made_update()
        assert isinstance(made, Tensor)
        seen.append(bool(made))
    assert seen == [True, False]


@pytest.mark.parametrize("zero", [0, "owned", "plain"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_on_a_gpu_the_parameter_of_the_first_bad_step_is_found(
    zero: int | str, accumulation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without repeating the step, whose weights are spoilt; the next steps are bad in all parameters."""
    engine = make_engine(make_plan(zero=zero, accumulation=accumulation))
    monkeypatch.setattr(engine, "_looks", False)
    stream, step = iter(batches(4 * accumulation)), 0

    def spoil(norm: nn.Module, arguments: Any, out: Tensor) -> None:
        if step == 2:
            out.register_hook(lambda gradient: gradient * float("inf"))

    engine.model.norm.register_forward_hook(spoil)
    assert engine.find_nonfinite() == []
    for step in range(4):
        engine.train_step(stream, 0.01)
        assert step != 1 or engine.find_nonfinite() == []
    assert engine.find_nonfinite() == ["norm.bias", "norm.weight", "embed.weight"]


SPOILT = 15
"""A first token that makes the gradient of what the norm returns infinite."""


@pytest.mark.parametrize(
    ("dtype", "zero"),
    [
        ("fp32", 0),
        ("fp32", 1),
        ("fp32", 3),
        ("bf16", 1),
        ("fp16", 0),
        ("fp16", 1),
        ("fp32", "owned"),
        ("fp32", "plain"),
    ],
)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_parameter_whose_gradient_is_not_finite_is_found(
    dtype: str, zero: int | str, accumulation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the batches of the first step that was left out: those of the second would blame the output layer."""
    from deepspeed.accelerator import get_accelerator

    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)
    monkeypatch.setattr(nn.functional, "linear", nn.functional.linear)  # ZeRO 3 replaces it for the whole process
    engine = make_engine(make_plan(dtype, zero, accumulation, on_nonfinite_loss="skip"))
    spoilt = False

    def look(embed: nn.Module, arguments: tuple[Tensor]) -> None:
        nonlocal spoilt
        spoilt = bool(arguments[0][0, 0] == SPOILT)

    def spoil(norm: nn.Module, arguments: Any, out: Tensor) -> None:
        if spoilt:
            out.register_hook(lambda gradient: gradient * float("inf"))

    engine.model.embed.register_forward_pre_hook(look)
    engine.model.norm.register_forward_hook(spoil)
    made = []
    for step, batch in enumerate(batches(3)):
        batch[0, 0] = SPOILT if step == 1 else 0
        engine.model.factor = float("nan") if step == 2 else 1.0
        engine.train_step(iter([torch.zeros_like(batch)] * (accumulation - 1) + [batch]), 0.01)
        made.append(engine.made_update())
    engine.model.factor = 1.0
    assert made == [True, False, False]
    found = engine.find_nonfinite()
    assert sorted(found) == ["embed.weight", "norm.bias", "norm.weight"]
    assert found[-1] == "embed.weight", "the backward pass comes to it last"
