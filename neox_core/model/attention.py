"""Causal self-attention with one fused projection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neox_core.model.linear import Linear

if TYPE_CHECKING:
    from neox_core.contracts.model import Position
    from neox_core.model.cache import KeyValueCache
    from neox_core.model.shape import ModelShape


class Attention(nn.Module):
    """[batch, seq, hidden] -> [batch, seq, hidden]; a token sees itself and what is before it.

    The rows of `qkv` lie as in GPT-NeoX: for each head its query, key and value, [heads, 3, head_dim]. A head's width
    is then one block of rows, which tensor parallelism can slice, and published weights fit without a permutation.

    softmax_in_fp32: scores, softmax and their product with the values in fp32 also where q, k and v are not.
    """

    def __init__(self, shape: ModelShape, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads = shape.num_heads
        self.head_dim = shape.head_dim
        self.dropout = shape.attention_dropout
        self.softmax_in_fp32 = shape.softmax_in_fp32
        self.qkv = Linear(shape.hidden_size, 3 * shape.hidden_size)
        self.output = Linear(shape.hidden_size, shape.hidden_size, residual_output=True)

    def forward(self, x: Tensor, position: Position, prepared: Any, cache: KeyValueCache | None = None) -> Tensor:
        batch, seq, hidden = x.shape
        qkv = self.qkv(x).view(batch, seq, self.num_heads, 3, self.head_dim)
        query, key, value = qkv.permute(3, 0, 2, 1, 4)  # each [batch, heads, seq, head_dim], a view
        query, key = position.rotate(query, key, prepared)
        if cache is not None:
            key, value = cache.extend(self.layer, key, value)
        attended = self._attend(query, key, value)
        return self.output(attended.transpose(1, 2).reshape(batch, seq, hidden))  # type: ignore[no-any-return]

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.softmax_in_fp32 and query.dtype in (torch.float16, torch.bfloat16):
            with torch.autocast(query.device.type, enabled=False):
                return self._causal(query.float(), key.float(), value.float()).to(query.dtype)
        return self._causal(query, key, value)

    def _causal(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        new, total = query.shape[2], key.shape[2]
        dropout = self.dropout if self.training else 0.0
        if new == total:
            return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        # Generation only. The last of `total` tokens is the last new one; torch's is_causal aligns the first ones.
        seen = None
        if new > 1:
            seen = torch.ones(new, total, dtype=torch.bool, device=query.device).tril(total - new)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=dropout)
