"""A kernel against the reference of its op in fp64, forward and backward, in every dtype."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from neox_kernels.api import TOLERANCE, Tile, error_of
from neox_triton.choices import Tiling


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


@pytest.fixture
def tiled() -> Iterator[Callable[..., None]]:
    """Cuts an op into tiles of so many elements, for tensors of every dtype and width, as a table would."""
    cut: list[Tiling] = []

    def by(tiling: Tiling, block: int, **more: int) -> None:
        cut.append(tiling)
        dtypes = "fp32", "bf16", "fp16"
        tiling.use({(dtype, 2**each): Tile(block, **more) for dtype in dtypes for each in range(15)})

    yield by
    for each in cut:
        each.use({})
