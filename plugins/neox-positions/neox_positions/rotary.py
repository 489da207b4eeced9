"""Rotary position embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neox_core.errors import ConfigError
from neox_positions.none import NoPosition
from neox_positions.scaling import attention_factor, dynamic_base, scaled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neox_gpt.api import PositionShape

    from neox_positions.settings import RotarySettings


class Rotary(NoPosition):
    """Turns dimension i of a query or key together with dimension i + n / 2 by position * base^(-2i / n), where the
    first n = rotary_pct * head_dim dimensions of a head are turned (Su et al. 2021, arXiv:2104.09864, in the
    half-and-half order of GPT-NeoX). Scores then depend on the distance of two tokens alone.

    Angles are computed in fp32 from the positions at each pass: nothing is stored, and nothing is bound to a length.
    For `rotary_scaling` see `scaling`. Layers with a window may have a base of their own, which is not scaled.
    """

    def __init__(self, shape: PositionShape, settings: RotarySettings) -> None:
        super().__init__(shape, settings)
        self.turned = int(shape.head_dim * settings.rotary_pct)
        self.base = settings.rotary_emb_base
        self.settings = settings
        self.kernels: Mapping[str, Callable[..., Any]] = {}
        if self.turned < 2 or self.turned % 2:
            raise ConfigError(
                f"rotary-pct {settings.rotary_pct} turns {self.turned} of {shape.head_dim} dimensions of a head",
                hint="their number must be even and at least 2",
            )

    @property
    def decodes_up_to(self) -> int | None:
        """Beyond its original length `dynamic` turns the keys of earlier tokens otherwise with each new token."""
        return self.settings.rotary_original_positions if self.settings.rotary_scaling == "dynamic" else None

    def prepare(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Cosine and signed sine, each [(batch, 1,) seq, turned]; and those of layers with a window, if others."""
        exponent = torch.arange(0, self.turned, 2, device=positions.device, dtype=torch.float32) / self.turned
        if self.settings.rotary_scaling == "dynamic":
            frequencies = dynamic_base(positions, self.turned, self.settings) ** -exponent
        else:
            frequencies = scaled(self.base**-exponent, self.settings)
        tables = _tables(positions, frequencies, dtype, attention_factor(self.settings))
        in_windows = self.settings.rotary_emb_base_in_windows
        return tables if in_windows is None else (*tables, *_tables(positions, in_windows**-exponent, dtype))

    def rotate(self, query: Tensor, key: Tensor, prepared: Any) -> tuple[Tensor, Tensor]:
        cos, sin = prepared[:2]
        turn: Callable[..., tuple[Tensor, Tensor]] = self.kernels.get("rotary_pair", rotary_pair)
        return turn(query, key, cos, sin)

    def rotate_in_window(self, query: Tensor, key: Tensor, prepared: Any) -> tuple[Tensor, Tensor]:
        """The same in a layer with a window."""
        return self.rotate(query, key, prepared[-2:])


def _tables(positions: Tensor, frequencies: Tensor, dtype: torch.dtype, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """frequencies: [turned / 2], or [(batch,) 1, turned / 2] for those of each sequence."""
    angles = positions[..., None].float() * frequencies  # [(batch,) seq, turned / 2]
    if positions.dim() == 2:
        angles = angles[:, None]  # heads
    cos, sin = angles.cos(), angles.sin()
    if factor != 1.0:
        cos, sin = cos * factor, sin * factor
    return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)


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
