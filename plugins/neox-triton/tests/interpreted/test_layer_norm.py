from typing import Any

import pytest
import torch
from neox_norms.layernorm import layer_norm as reference
from neox_triton.layer_norm import KERNEL, layer_norm


@pytest.mark.parametrize("width", [3, 64, 123])
def test_equals_the_reference(agrees: Any, draw: Any, width: int) -> None:
    agrees(layer_norm, reference, draw(5, width), draw(width), draw(width), 1e-5)
    agrees(layer_norm, reference, draw(2, 3, width, 2)[..., 1], draw(width), draw(width), 1e-5)  # not contiguous


def test_adds_the_residual_before(agrees: Any, draw: Any) -> None:
    weight = draw(123)
    agrees(layer_norm, reference, draw(5, 123), weight, weight * 0, 1e-5, draw(5, 123))
    wide, narrow = draw(5, 123).detach(), draw(5, 123).detach().bfloat16()
    y, total = layer_norm(narrow, weight, weight * 0, 1e-5, wide)
    assert y.dtype == total.dtype == torch.float32
    assert torch.equal(total, narrow + wide)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 3e4])
def test_extreme_values_stay_finite(dtype: torch.dtype, scale: float) -> None:
    x = (torch.linspace(-1, 1, 123) * scale).to(dtype).requires_grad_()
    weight = torch.ones(123, dtype=dtype)
    y = layer_norm(x, weight, weight * 0, 1e-5)
    (dx,) = torch.autograd.grad(y.float().sum(), x)
    assert y.isfinite().all()
    if dtype != torch.float16:  # whose largest number is below a gradient of 1 / eps
        assert dx.isfinite().all()
    if scale > 1:
        theirs = reference(x.detach().double(), weight.double(), weight.double() * 0, 1e-5)
        assert torch.allclose(y.double(), theirs, rtol=2e-2, atol=2e-2)


def test_more_rows_than_programs(agrees: Any, draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neox_triton.norm.PROGRAMS", 3)
    width = 20
    agrees(layer_norm, reference, draw(8, width), draw(width), draw(width), 1e-5)


def test_a_row_in_parts(agrees: Any, draw: Any, tiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neox_triton.norm.PROGRAMS", 3)
    tiled(KERNEL.tiling, 32)
    width = 123
    agrees(layer_norm, reference, draw(5, width), draw(width), draw(width), 1e-5, draw(5, width))
