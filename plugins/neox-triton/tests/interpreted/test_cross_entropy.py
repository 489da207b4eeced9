from typing import Any

import pytest
import torch
from neox_gpt.loss import cross_entropy as reference
from neox_triton.cross_entropy import KERNEL, cross_entropy
from torch.nn import functional as F


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_equals_the_reference(agrees: Any, draw: Any, chunk: int) -> None:
    labels = torch.tensor([[0, 122, -100, 7, 9], [3, -100, -100, 5, 0]])
    agrees(cross_entropy, reference, draw(2, 5, 16), draw(123, 16), labels, chunk)


def test_more_logits_than_a_block(draw: Any, tiled: Any) -> None:
    tiled(KERNEL.tiling, 16)
    hidden, weight, labels = draw(6, 8), draw(50, 8), torch.tensor([0, 15, 16, 49, -100, 31])
    mine = torch.autograd.grad(cross_entropy(hidden, weight, labels), (hidden, weight))
    theirs = torch.autograd.grad(F.cross_entropy(hidden @ weight.T, labels), (hidden, weight))
    for ours, own in zip(mine, theirs, strict=True):
        assert torch.allclose(ours, own, atol=1e-6)


def test_no_label_counts_and_no_gradient_is_asked_for(draw: Any) -> None:
    hidden, weight = draw(2, 3, 8), draw(20, 8)
    assert float(cross_entropy(hidden, weight, torch.full((2, 3), -100)).detach()) == 0.0
    with torch.no_grad():
        loss = cross_entropy(hidden, weight, torch.ones(2, 3, dtype=torch.int64))
    assert not loss.requires_grad


def test_extreme_logits() -> None:
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    weight = torch.tensor([[1.0], [0.0], [-1.0]])
    loss = cross_entropy(hidden, weight, torch.tensor([0, 0]))
    loss.backward()
    assert float(loss.detach()) == 1e4
    assert torch.allclose(hidden.grad, torch.tensor([[0.0], [-1.0]]))


def test_the_gradient_of_the_matrix_is_summed_in_fp32(draw: Any) -> None:
    """However many chunks it is summed from: what bf16 rounds is the gradient of the logits alone."""
    hidden, weight, labels = draw(48, 16), draw(40, 16), torch.arange(48) % 40
    found = []
    for chunk in (1, 48):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = cross_entropy(hidden, weight, labels, chunk)
        found.append(torch.autograd.grad(loss, weight)[0])
    assert torch.allclose(*found, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("label", [-1, 20, 2**40])
@pytest.mark.parametrize("op", [cross_entropy, reference])
def test_a_label_outside_of_the_vocabulary_makes_the_loss_nan(draw: Any, op: Any, label: int) -> None:
    assert op(draw(2, 8), draw(20, 8), torch.tensor([3, label])).isnan()
    assert op(draw(2, 8), draw(20, 8), torch.tensor([3, 19])).isfinite()


def test_a_matrix_that_is_not_trained_gets_no_gradient(draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neox_triton.cross_entropy._accumulate", None)  # which nothing may call
    hidden, weight, labels = draw(6, 8), draw(20, 8).detach(), torch.arange(6)
    (mine,) = torch.autograd.grad(cross_entropy(hidden, weight, labels), hidden)
    (theirs,) = torch.autograd.grad(F.cross_entropy(hidden @ weight.T, labels), hidden)
    assert torch.allclose(mine, theirs, atol=1e-6)
