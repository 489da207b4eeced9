"""Causal self-attention with one fused projection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from neox_core.model.dropout import attention_site, drop_probabilities
from neox_core.model.linear import ColumnLinear, RowLinear
from neox_core.parallel.tensor import ALONE

if TYPE_CHECKING:
    from neox_core.contracts.model import Position
    from neox_core.model.cache import KeyValueCache
    from neox_core.model.shape import ModelShape
    from neox_core.parallel.tensor import TensorParallel

QUERY_CHUNK = 128
"""Queries whose probabilities exist at once where they are dropped from."""


class Attention(nn.Module):
    """[batch, seq, hidden] -> [batch, seq, hidden]; a token sees itself and what is before it.

    The rows of `qkv` lie as in GPT-NeoX: for each head its query, key and value, [heads, 3, head_dim]. A head's width
    is then one block of rows, which tensor parallelism can slice, and published weights fit without a permutation.

    A tensor-parallel rank has its share of the heads.
    softmax_in_fp32: scores, softmax and their product with the values in fp32 also where q, k and v are not.
    """

    def __init__(self, shape: ModelShape, layer: int, tensor: TensorParallel = ALONE) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads = tensor.share(shape.num_heads)
        self.first_head = tensor.first(shape.num_heads)
        self.head_dim = shape.head_dim
        self.dropout = shape.attention_dropout
        self.softmax_in_fp32 = shape.softmax_in_fp32
        self.qkv = ColumnLinear(shape.hidden_size, 3 * shape.hidden_size, tensor)
        self.output = RowLinear(shape.hidden_size, shape.hidden_size, tensor)

    def forward(
        self,
        x: Tensor,
        position: Position,
        prepared: Any,
        cache: KeyValueCache | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """keys: of the samples, for dropout; None: none."""
        projected = self.qkv(x)  # with sequence parallelism, of more positions than x
        batch, seq, _ = projected.shape
        qkv = projected.view(batch, seq, self.num_heads, 3, self.head_dim)
        query, key, value = qkv.permute(3, 0, 2, 1, 4)  # each [batch, heads, seq, head_dim], a view
        query, key = position.rotate(query, key, prepared)
        if cache is not None:
            key, value = cache.extend(self.layer, key, value)
        attended = self._attend(query, key, value, keys if self.dropout else None)
        return self.output(attended.transpose(1, 2).reshape(batch, seq, -1))  # type: ignore[no-any-return]

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, keys: Tensor | None = None) -> Tensor:
        if self.softmax_in_fp32 and query.dtype in (torch.float16, torch.bfloat16):
            with torch.autocast(query.device.type, enabled=False):
                return self._causal(query.float(), key.float(), value.float(), keys).to(query.dtype)
        return self._causal(query, key, value, keys)

    def _causal(self, query: Tensor, key: Tensor, value: Tensor, keys: Tensor | None) -> Tensor:
        new, total = query.shape[2], key.shape[2]
        if keys is not None:
            return self._dropping(query, key, value, keys)
        if new == total:
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)
        # Generation only. The last of `total` tokens is the last new one; torch's is_causal aligns the first ones.
        seen = None
        if new > 1:
            seen = torch.ones(new, total, dtype=torch.bool, device=query.device).tril(total - new)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=seen)

    def _dropping(self, query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
        """In training: some queries at a time, whose probabilities are computed again in the backward pass.

        torch's own kernel draws its mask from a generator, in an order that depends on the layout of the ranks.
        """
        seq = query.shape[2]
        parts = []
        for first in range(0, seq, QUERY_CHUNK):
            last = min(first + QUERY_CHUNK, seq)
            some = query[:, :, first:last], key[:, :, :last], value[:, :, :last], keys, first
            parts.append(checkpoint(self._dropping_some, *some, use_reentrant=False, preserve_rng_state=False))
        return torch.cat(parts, 2)

    def _dropping_some(self, query: Tensor, key: Tensor, value: Tensor, keys: Tensor, first: int) -> Tensor:
        """Attention of the queries from `first` on to all `key`: [batch, heads, queries, head_dim]."""
        scores = (query / self.head_dim**0.5) @ key.transpose(-1, -2)
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(first + 1)
        wide = torch.promote_types(scores.dtype, torch.float32)
        probs = scores.masked_fill(ahead, -torch.inf).softmax(-1, dtype=wide).to(value.dtype)
        return drop_probabilities(probs, self.dropout, keys, attention_site(self.layer), self.first_head, first) @ value
