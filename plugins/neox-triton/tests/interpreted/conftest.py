"""A kernel against the reference of its op in fp64, forward and backward, in every dtype."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from neox_core.kernels.compare import TOLERANCE, error_of


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
def dtype(request: Any) -> torch.dtype:
    return request.param


@pytest.fixture
def agrees(dtype: torch.dtype) -> Callable[..., None]:
    def check(kernel: Any, reference: Any, *arguments: Any) -> None:
        cast = [
            each.to(dtype).detach().requires_grad_(each.requires_grad)
            if isinstance(each, torch.Tensor) and each.is_floating_point()
            else each
            for each in arguments
        ]
        assert error_of(kernel, reference, cast) < TOLERANCE[dtype]

    return check


@pytest.fixture
def draw() -> Callable[..., torch.Tensor]:
    generator = torch.Generator().manual_seed(11)

    def drawn(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * scale).requires_grad_()

    return drawn
