"""Arguments that kernels are compared, compiled and measured on. Small ones are odd; large ones are a model's."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor


@frozen
class Size:
    """Of a model and its batch, in elements; gated: of the value, and of the gate beside it."""

    width: int
    heads: int
    seq: int = 2048
    batch: int = 4
    gated: int = 11008
    vocab: int = 50432

    @property
    def hidden(self) -> tuple[int, int, int]:
        """The shape of activations."""
        return self.batch, self.seq, self.width

    @property
    def head_dim(self) -> int:
        """The width of a head."""
        return self.width // self.heads


LARGE = Size(4096, 32)
"""A 7B model's."""
TUNED = tuple(Size(*each) for each in ((1024, 16, 2048, 4, 2816), (2048, 16, 2048, 4, 5632), (2048, 8), (4096, 32),
                                       (8192, 64, 2048, 4, 22016), (12288, 96, 2048, 1)))  # fmt: skip
"""Models whose kernels are measured to fill a table of tiles: all widths and heads from 1024 and 64 on."""


def draw(*shape: int, dtype: torch.dtype, device: torch.device, scale: float = 1.0) -> Tensor:
    """Normal numbers that require their gradient; the same ones each time, drawn on the CPU."""
    if device.type == "meta":
        return torch.empty(shape, dtype=dtype, device=device, requires_grad=True)
    generator = torch.Generator().manual_seed(1234 + sum(shape))
    values = torch.randn(shape, generator=generator) * scale
    return values.to(device=device, dtype=dtype).requires_grad_()


def norm_input(dtype: torch.dtype, device: torch.device, size: Size | None) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and bias."""
    shape = size.hidden if size else (5, 123)
    x = draw(*shape, dtype=dtype, device=device)
    return x, draw(shape[-1], dtype=dtype, device=device), draw(shape[-1], dtype=dtype, device=device, scale=0.5)


def gated_input(dtype: torch.dtype, device: torch.device, size: Size | None) -> Tensor:
    """Value and gate side by side."""
    return draw(*((size.batch, size.seq, 2 * size.gated) if size else (5, 246)), dtype=dtype, device=device, scale=2.0)


def sublayer_output(dtype: torch.dtype, device: torch.device, size: Size | None) -> tuple[Tensor, Tensor, Tensor]:
    """x, bias and residual."""
    shape = size.hidden if size else (2, 3, 123)
    x, bias = draw(*shape, dtype=dtype, device=device), draw(shape[-1], dtype=dtype, device=device)
    return x, bias, draw(*shape, dtype=dtype, device=device, scale=3.0)


def scores(dtype: torch.dtype, device: torch.device, size: Size | None) -> Tensor:
    """[batch, heads, queries, keys]."""
    return draw(*((1, size.heads, size.seq, size.seq) if size else (2, 2, 5, 7)), dtype=dtype, device=device, scale=3.0)


def blocks(device: torch.device, size: Size | None) -> tuple[Tensor, Tensor]:
    """fp32 [rows, 512], and how many elements of each row are in use, [rows, 1]; the rest are 0."""
    count = 32768 if size else 3
    filled = torch.full((count, 1), 512.0, device=device)
    filled[-1] = 123.0
    inside = torch.arange(512, device=device) < filled
    return draw(count, 512, dtype=torch.float32, device=device).detach() * inside, filled
