"""What a pass over the decoder gives, against `WholeLogits` of the kit, whole and on two ranks."""

from typing import Any

import pytest
import torch
from neox_author.testing.outputs import WholeLogits
from neox_author.testing.ranks import run_ranks
from neox_gpt.outputs import DecoderOutputs
from torch import Tensor

from neox_core.contracts.objective import Outputs
from neox_core.parallel.tensor import TensorParallel

BATCH, SEQ, HIDDEN, VOCAB = 2, 7, 6, 10


def problem() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(4)
    hidden = torch.randn(BATCH, SEQ, HIDDEN, generator=draw, dtype=torch.float64)
    weight = torch.randn(VOCAB, HIDDEN, generator=draw, dtype=torch.float64)
    labels = torch.randint(VOCAB, (BATCH, SEQ), generator=draw)
    labels[0, 2] = labels[1, 0] = -100
    return hidden, weight, labels


def numbers(outputs: Outputs, labels: Tensor) -> Tensor:
    """All that a pass gives, each with a factor of its own, as one number that gradients go through."""
    scores, logits = outputs.scores(labels), outputs.logits()
    parts = (scores.log_prob, scores.mean_log_prob, scores.log_sum.square(), logits.sin())
    factors = (torch.linspace(-1, 2, each.numel()).double().view(each.shape) for each in parts)
    total = outputs.cross_entropy(labels)
    for part, factor in zip(parts, factors, strict=True):
        total = total + (part * factor).mean()
    return total


def reference() -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight, labels = problem()
    hidden.requires_grad_(), weight.requires_grad_()
    total = numbers(WholeLogits(hidden @ weight.T), labels)
    total.backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    return total.detach(), hidden.grad, weight.grad


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_equals_the_reference(chunk: int) -> None:
    hidden, weight, labels = problem()
    hidden.requires_grad_(), weight.requires_grad_()
    total = numbers(DecoderOutputs(hidden, weight, chunk=chunk), labels)
    total.backward()
    for found, expected in zip((total.detach(), hidden.grad, weight.grad), reference(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_equals_the_reference_on_two_ranks(sequence_parallel: bool) -> None:
    total, hidden_grad, weight_grad = reference()

    def rank(tensor: TensorParallel) -> None:
        hidden, weight, labels = problem()
        rows = slice(tensor.rank * VOCAB // 2, (tensor.rank + 1) * VOCAB // 2)
        weight = weight[rows].clone().requires_grad_()
        hidden.requires_grad_()
        found = numbers(DecoderOutputs(hidden, weight, tensor, chunk=4), labels)
        found.backward()
        torch.testing.assert_close(found.detach(), total, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(weight.grad, weight_grad[rows], rtol=1e-10, atol=1e-12)
        assert hidden.grad is not None  # the part through this rank's rows: `enter` adds them up
        torch.testing.assert_close(tensor.add_up(hidden.grad), hidden_grad, rtol=1e-10, atol=1e-12)

    run_ranks(2, rank, sequence_parallel=sequence_parallel)


def test_without_gradients_nothing_is_kept() -> None:
    hidden, weight, labels = problem()
    with torch.no_grad():
        found: Any = DecoderOutputs(hidden, weight, chunk=4).scores(labels)
    expected = WholeLogits(hidden @ weight.T).scores(labels)
    for name in ("log_prob", "mean_log_prob", "log_sum"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-12, atol=1e-12)
    assert not found.log_prob.requires_grad
