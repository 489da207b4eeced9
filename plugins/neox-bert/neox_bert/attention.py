"""Softmax attention in which a token sees all others of its sample."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from neox_gpt.api import PLAIN, Attention, Request, Scope, attention_site, blocked_attention, drop_probabilities
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    from neox_gpt.api import ScoreBias


class Bidirectional(Attention):
    """[batch, seq, hidden] -> [batch, seq, hidden]; tokens of one document in the sample see each other, or in a layer
    with a sparse layout those in the blocks that it names.

    Parameters and their places are those of causal attention.
    """

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias_of: Callable[[Any], ScoreBias | None] | None = None,
        scope: Scope = PLAIN,
        layer: int = 0,
    ) -> Tensor:
        documents, seq = scope.documents, query.shape[2]
        blocks = scope.tables.get(layer) if scope.tables else None
        if blocks is not None:
            request = Request(
                scale=self.scale,
                bias_of=bias_of,
                prepared=scope.prepared,
                first_head=self.first_head,
                documents=documents,
                dropout=self.dropout,
                keys=scope.keys,
                site=attention_site(layer),
                blocks=blocks,
            )
            return blocked_attention(query, key, value, request)
        seen = None if documents is None else (documents[:, :, None] == documents[:, None, :])[:, None]
        make = None if bias_of is None else bias_of(scope.prepared)
        bias = None
        if make is not None:
            head = torch.arange(self.first_head, self.first_head + query.shape[1], device=query.device)[:, None, None]
            place = torch.arange(seq, device=query.device)
            bias = make(head, place[:, None], place[None, :])  # [heads, seq, seq]
        if not self.dropout or scope.keys is None:
            mask = seen
            if bias is not None:
                bias = bias.to(query.dtype)
                mask = bias if seen is None else bias.expand(len(query), -1, -1, -1).masked_fill(~seen, -math.inf)
            grouped = query.shape[1] != key.shape[1]
            return functional.scaled_dot_product_attention(
                query, key, value, mask, scale=self.scale, enable_gqa=grouped
            )
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        scores = query @ key.transpose(2, 3)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) * self.scale
        scores = scores if bias is None else scores + bias.to(scores.dtype)
        scores = scores if seen is None else scores.masked_fill(~seen, -math.inf)
        site = attention_site(layer)
        probs = drop_probabilities(scores.softmax(-1), self.dropout, scope.keys, site, self.first_head, 0)
        return probs.to(value.dtype) @ value
