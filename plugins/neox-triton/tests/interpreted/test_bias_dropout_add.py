from typing import Any

import pytest
import torch
from neox_gpt.dropout import bias_dropout_add as reference
from neox_gpt.dropout import drop
from neox_triton.bias_dropout_add import bias_dropout_add

from neox_core.parallel.sample_keys import sample_keys

KEYS = sample_keys(seed=5, first=7, count=2, device="cpu")


@pytest.mark.parametrize("p", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("biased", [True, False])
def test_equals_the_reference(agrees: Any, draw: Any, p: float, biased: bool) -> None:
    bias = draw(123) if biased else None
    agrees(bias_dropout_add, reference, draw(2, 5, 123), bias, draw(2, 5, 123), p, KEYS, 8, 3)


def test_drops_the_same_elements_as_the_reference() -> None:
    ones, nothing = torch.ones(2, 40, 300), torch.zeros(2, 40, 300)
    for site, first in ((0, 0), (1, 1), (2**31, 2**20)):
        mine = bias_dropout_add(ones, None, nothing, 0.3, KEYS, site, first)
        assert torch.equal(mine != 0, drop(ones, 0.3, KEYS, site, first) != 0)


def test_the_gradient_of_what_was_dropped_is_zero() -> None:
    x = torch.ones(2, 3, 50, requires_grad=True)
    y = bias_dropout_add(x, None, torch.zeros(2, 3, 50), 0.5, KEYS, 2, 0)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert 0.3 < float((y == 0).float().mean()) < 0.7


def test_narrow_results_on_a_wide_residual(draw: Any) -> None:
    x, residual = draw(2, 3, 9).detach().bfloat16(), draw(2, 3, 9).detach()
    mine, theirs = (op(x, None, residual, 0.2, KEYS, 1) for op in (bias_dropout_add, reference))
    assert mine.dtype == theirs.dtype == torch.float32
    assert torch.allclose(mine, theirs, atol=2e-2)


def test_few_programs(agrees: Any, draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neox_triton.bias_dropout_add.PROGRAMS", 4)
    agrees(bias_dropout_add, reference, draw(2, 3, 20), draw(20), draw(2, 3, 20), 0.5, KEYS, 4, 0)
