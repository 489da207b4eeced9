from typing import Any

import pytest
import torch
from neox_activations import gated
from neox_triton.gated import geglu, swiglu

BOTH = pytest.mark.parametrize("kernel", [geglu, swiglu])


@BOTH
@pytest.mark.parametrize("width", [1, 123, 1500])
def test_equals_the_reference(agrees: Any, draw: Any, width: int, kernel: Any) -> None:
    agrees(kernel, getattr(gated, kernel.__name__), draw(5, 2 * width, scale=2.0))


@BOTH
def test_of_a_view(agrees: Any, draw: Any, kernel: Any) -> None:
    x = draw(2, 6, 3).transpose(1, 2).detach().requires_grad_()
    agrees(kernel, getattr(gated, kernel.__name__), x)


@BOTH
def test_extreme_gates(dtype: torch.dtype, kernel: Any) -> None:
    gate = torch.tensor([-6e4, -30.0, 0.0, 30.0, 6e4])
    x = torch.cat((torch.ones(5), gate)).to(dtype).requires_grad_()
    y = kernel(x)
    y.float().sum().backward()
    assert torch.allclose(y.float(), gate.clamp(min=0).to(dtype).float(), atol=1e-5)
    assert x.grad.isfinite().all()
