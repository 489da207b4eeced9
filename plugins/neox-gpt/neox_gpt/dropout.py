"""Dropout whose masks depend only on what is dropped, not on the rank that computes it.

A hash of 32 bits of (seed, index of the sample in the run, layer, place, head or position, feature) decides
whether an element is kept. So every layout of ranks, every micro-batch and every recomputation drops the same
elements, and a checkpoint needs no generator state for it. The hash is integer arithmetic on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neox_core.parallel.sample_keys import MASK32, mix

_SITES = 3  # places in a layer
EMBEDDING = 0
"""The place after the embedding."""


def attention_site(layer: int) -> int:
    """The attention probabilities of a layer."""
    return 1 + _SITES * layer


def attended_site(layer: int) -> int:
    """The output of a layer's attention."""
    return 2 + _SITES * layer


def mlp_site(layer: int) -> int:
    """The output of a layer's MLP."""
    return 3 + _SITES * layer


def drop(
    x: Tensor, p: float, keys: Tensor | None, site: int, first_position: int = 0, *, first_column: int = 0
) -> Tensor:
    """`x` with each element 0 with probability p, and divided by 1 - p otherwise; `x` itself without keys or p.

    x: [batch, seq, hidden], positions `first_position` and columns `first_column` and on of the samples. keys: [batch].
    """
    if keys is None or p == 0.0:
        return x
    positions = torch.arange(first_position, first_position + x.shape[1], device=x.device)
    rows = mix(site_keys(keys, site)[:, None] ^ positions)  # [batch, seq]
    return _thin(x, rows, p, first_column)


def bias_dropout_add(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    p: float = 0.0,
    keys: Tensor | None = None,
    site: int = 0,
    first_position: int = 0,
) -> Tensor:
    """The op after each sublayer: `residual + drop(x + bias)`; x, residual [batch, seq, hidden], bias [hidden]."""
    return residual + drop(x if bias is None else x + bias.to(x.dtype), p, keys, site, first_position)


def drop_probabilities(
    probs: Tensor, p: float, keys: Tensor | None, site: int, first_head: int = 0, first_query: int = 0
) -> Tensor:
    """The same for attention probabilities [batch, heads, queries, keys], heads and queries from the given ones on."""
    if keys is None or p == 0.0:
        return probs
    heads = torch.arange(first_head, first_head + probs.shape[1], device=probs.device)[:, None, None]
    queries = torch.arange(first_query, first_query + probs.shape[2], device=probs.device)[:, None]
    columns = torch.arange(probs.shape[3], device=probs.device)
    kept = keep_probabilities(p, keys, site, heads, queries, columns)
    return torch.where(
        kept, probs / (1 - p) if p < 1 else probs, torch.zeros((), dtype=probs.dtype, device=probs.device)
    )


def keep_probabilities(p: float, keys: Tensor, site: int, heads: Tensor, queries: Tensor, columns: Tensor) -> Tensor:
    """Which probabilities stay: bool [batch, ...], where `...` is what heads, queries and columns broadcast to."""
    salted = site_keys(keys, site).view(-1, *[1] * torch.broadcast_tensors(heads, queries, columns)[0].ndim)
    rows = mix(mix(salted ^ heads) ^ queries)
    return _kept(rows, columns, p)


def _thin(x: Tensor, rows: Tensor, p: float, first_column: int) -> Tensor:
    """rows: a hash for each row of x, [...]; x: [..., columns], from `first_column` on."""
    kept = _kept(rows[..., None], torch.arange(first_column, first_column + x.shape[-1], device=x.device), p)
    return torch.where(kept, x / (1 - p) if p < 1 else x, torch.zeros((), dtype=x.dtype, device=x.device))


def _kept(rows: Tensor, columns: Tensor, p: float) -> Tensor:
    return mix(rows ^ mix(columns + 1)) >= round(p * 2**32)


def site_keys(keys: Tensor, site: int) -> Tensor:
    """The samples' keys at a place of the model: int64 [batch], below 2**32."""
    salt = 0x5BD1E995 * (site + 1) & MASK32
    if torch.compiler.is_compiling():  # torch's compiler makes a float of a number that differs between layers
        return mix(keys ^ torch.full((), salt, dtype=torch.int64, device=keys.device))
    return mix(keys ^ salt)
