"""Rotary position embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neox_core.errors import ConfigError
from neox_positions.none import NoPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neox_gpt.api import PositionShape

    from neox_positions.settings import RotarySettings


class Rotary(NoPosition):
    """Turns dimension i of a query or key together with dimension i + n / 2 by position * base^(-2i / n), where the
    first n = rotary_pct * head_dim dimensions of a head are turned (Su et al. 2021, arXiv:2104.09864, in the
    half-and-half order of GPT-NeoX). Scores then depend on the distance of two tokens alone.

    Angles are computed in fp32 from the positions at each pass: nothing is stored, and nothing is bound to a length.
    """

    def __init__(self, shape: PositionShape, settings: RotarySettings) -> None:
        super().__init__(shape, settings)
        self.turned = int(shape.head_dim * settings.rotary_pct)
        self.base = settings.rotary_emb_base
        self.kernels: Mapping[str, Callable[..., Any]] = {}
        if self.turned < 2 or self.turned % 2:
            raise ConfigError(
                f"rotary-pct {settings.rotary_pct} turns {self.turned} of {shape.head_dim} dimensions of a head",
                hint="their number must be even and at least 2",
            )

    def prepare(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine, each [(batch, 1,) seq, turned]."""
        exponent = torch.arange(0, self.turned, 2, device=positions.device, dtype=torch.float32) / self.turned
        angles = positions[..., None].float() * self.base**-exponent  # [(batch,) seq, turned / 2]
        if positions.dim() == 2:
            angles = angles[:, None]  # heads
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)

    def rotate(self, query: Tensor, key: Tensor, prepared: Any) -> tuple[Tensor, Tensor]:
        cos, sin = prepared
        turn: Callable[..., tuple[Tensor, Tensor]] = self.kernels.get("rotary_pair", rotary_pair)
        return turn(query, key, cos, sin)


def rotary_pair(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The op: query and key [batch, heads, seq, head_dim], each with heads of its own -> as they are.

    cos, sin: [(batch, 1,) seq, turned], turned even. The sine carries the sign of rotate-half: it is negative in the
    first half. The tables get no gradient.
    """
    cos, sin = cos.detach(), sin.detach()
    return _turned(query, cos, sin), _turned(key, cos, sin)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = cos.shape[-1]
    head = x[..., :turned]
    result = (head * cos + head.roll(turned // 2, dims=-1) * sin).to(x.dtype)
    return result if turned == x.shape[-1] else torch.cat((result, x[..., turned:]), dim=-1)
