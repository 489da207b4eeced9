from typing import Any

import pytest
import torch
from neox_activations.gelu import bias_gelu as reference
from neox_triton.bias_gelu import bias_gelu


@pytest.mark.parametrize("by_tanh", [False, True])
@pytest.mark.parametrize("width", [1, 123, 1100])
def test_equals_the_reference(agrees: Any, draw: Any, width: int, by_tanh: bool) -> None:
    agrees(bias_gelu, reference, draw(5, width, scale=3.0), draw(width), by_tanh)


def test_of_a_view_with_few_programs(agrees: Any, draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neox_triton.bias_gelu.PROGRAMS", 4)
    agrees(bias_gelu, reference, draw(2, 7, 5).transpose(1, 2).detach().requires_grad_(), draw(7), False)


@pytest.mark.parametrize("by_tanh", [False, True])
def test_extreme_values(dtype: torch.dtype, by_tanh: bool) -> None:
    x = torch.tensor([-6e4, -20.0, 0.0, 20.0, 6e4], dtype=dtype, requires_grad=True)
    y = bias_gelu(x, torch.zeros(5, dtype=dtype), by_tanh)
    y.float().sum().backward()
    assert torch.allclose(y, x.clamp(min=0), atol=1e-5)
    assert torch.equal(x.grad.float(), torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0]))
