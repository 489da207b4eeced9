from typing import Any

import pytest
import torch
from neox_activations.gated import geglu as reference
from neox_triton.geglu import geglu


@pytest.mark.parametrize("width", [1, 123, 1500])
def test_equals_the_reference(agrees: Any, draw: Any, width: int) -> None:
    agrees(geglu, reference, draw(5, 2 * width, scale=2.0))


def test_of_a_view(agrees: Any, draw: Any) -> None:
    agrees(geglu, reference, draw(2, 6, 3).transpose(1, 2).detach().requires_grad_())


def test_extreme_gates(dtype: torch.dtype) -> None:
    gate = torch.tensor([-6e4, -30.0, 0.0, 30.0, 6e4])
    x = torch.cat((torch.ones(5), gate)).to(dtype).requires_grad_()
    y = geglu(x)
    y.float().sum().backward()
    assert torch.allclose(y.float(), gate.clamp(min=0).to(dtype).float(), atol=1e-5)
    assert x.grad.isfinite().all()
