"""Causal self-attention with one fused projection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neox_core.parallel.tensor import ALONE
from neox_gpt.attention.cache import extend
from neox_gpt.attention.qk_norm import QKNorm
from neox_gpt.attention.scores import Request, attend
from neox_gpt.dropout import attention_site
from neox_gpt.linear import ColumnLinear, RowLinear
from neox_gpt.scope import PLAIN, Scope

if TYPE_CHECKING:
    from neox_core.parallel.tensor import TensorParallel
    from neox_gpt.contracts import MixerShape, Position, ScoreBias

HALF = (torch.float16, torch.bfloat16)


class Attention(nn.Module):
    """[batch, seq, hidden] -> [batch, seq, hidden]; a token sees itself and what is before it in its document.

    The rows of `qkv` lie as in GPT-NeoX: for each key its queries, then the key and its value, [kv heads, heads / kv
    heads + 2, head_dim]; without grouped queries that is [heads, 3, head_dim]. A key's width is then one block of rows,
    which tensor parallelism can slice, and GPT-NeoX's published weights fit without a permutation.

    A tensor-parallel rank has its share of the heads.
    softmax_in_fp32: scores, softmax and their product with the values in fp32 also where q, k and v are not.
    layer_scaling: queries are divided by the number of the layer before they meet the keys, and the scores multiplied
    by it afterwards, in fp32: the same scores, from products that stay in the range of fp16.
    window: a token sees so many tokens before itself. positions: whether the model's act here, which `nope` leaves out.
    """

    def __init__(self, shape: MixerShape, tensor: TensorParallel = ALONE, settings: None = None) -> None:
        super().__init__()
        self.num_heads = tensor.share(shape.num_heads)
        self.num_kv_heads = tensor.share(shape.num_kv_heads)
        self.first_head = tensor.first(shape.num_heads)
        self.head_dim = shape.head_dim
        self.dropout = shape.dropout
        self.kernels: Mapping[str, Callable[..., Any]] = {}
        self.softmax_in_fp32 = shape.softmax_in_fp32
        self.layer_scaling = shape.query_key_layer_scaling
        self.window = shape.window
        self.scale = self.head_dim**-0.5 if shape.multiplier is None else shape.multiplier
        self.softcap = shape.softcap
        self.positions = shape.positions
        self.qkv = ColumnLinear(shape.hidden_size, shape.qkv_width, tensor, bias=shape.bias)
        self.qk_norm = None if shape.qk_norm is None else QKNorm(shape, tensor)
        self.output = RowLinear(shape.width, shape.hidden_size, tensor, bias=shape.ends_in_bias)

    @property
    def last_bias(self) -> Tensor | None:
        """The bias that the caller adds to the output; None where there is none."""
        return self.output.added_bias

    def forward(
        self, x: Tensor, position: Position, scope: Scope = PLAIN, layer: int = 0, *, bias: bool = True
    ) -> Tensor:
        """layer: the place of this pass among all layers. bias: whether that of the output is added."""
        projected = self.qkv(x)  # with sequence parallelism, of more positions than x
        batch, seq, _ = projected.shape
        query, key, value = self._split(projected)
        if self.qk_norm is not None:
            query, key = self.qk_norm(query, key)
        if self.positions:
            rotate = position.rotate if self.window is None else getattr(position, "rotate_in_window", position.rotate)
            query, key = rotate(query, key, scope.prepared)
        if scope.cache is not None:
            key, value = extend(scope.cache, layer, key, value)
        attended = self._attend(query, key, value, position.score_bias if self.positions else None, scope, layer)
        output = self.output if bias else self.output.product
        return output(attended.transpose(1, 2).reshape(batch, seq, -1))

    def _split(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [batch, heads, seq, head_dim], keys and values [batch, kv heads, seq, head_dim]."""
        batch, seq, _ = projected.shape
        group = self.num_heads // self.num_kv_heads
        by_key = projected.view(batch, seq, self.num_kv_heads, group + 2, self.head_dim)
        if group == 1:
            query, key, value = by_key.permute(3, 0, 2, 1, 4)  # views
            return query, key, value
        query, key, value = by_key.split((group, 1, 1), 3)
        return query.flatten(2, 3).transpose(1, 2), key.squeeze(3).transpose(1, 2), value.squeeze(3).transpose(1, 2)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias_of: Callable[[Any], ScoreBias | None] | None = None,
        scope: Scope = PLAIN,
        layer: int = 0,
    ) -> Tensor:
        divisor = layer + 1 if self.layer_scaling else 1
        request = Request(
            scale=divisor * self.scale,
            softcap=self.softcap,
            bias_of=bias_of,
            prepared=scope.prepared,
            first_head=self.first_head,
            documents=scope.documents,
            mask=scope.mask,
            positions=scope.positions,
            dropout=self.dropout,
            keys=scope.keys,
            window=self.window,
            site=attention_site(layer),
            blocks=scope.tables.get(layer) if scope.tables else None,  # else a compiled layer is bound to its number
            causal_softmax=self.kernels.get("scaled_upper_triang_masked_softmax"),
            masked_softmax=self.kernels.get("scaled_masked_softmax"),
            block_sparse=self.kernels.get("block_sparse_attention"),
        )
        query = query / divisor if self.layer_scaling else query
        if self.softmax_in_fp32 and query.dtype in HALF:
            with torch.autocast(query.device.type, enabled=False):
                return attend(query.float(), key.float(), value.float(), request).to(query.dtype)
        return attend(query, key, value, request)
