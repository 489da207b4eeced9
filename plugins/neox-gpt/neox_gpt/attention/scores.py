"""Softmax attention, by the fastest path that a request allows. No path makes a [heads, seq, seq] tensor.

* compiled code on a CPU, or torch's fused attention, where nothing but the causal order decides who sees whom;
* block-sparse attention, where a layout does;
* the same in a band of blocks, or FlexAttention on a GPU, where a token sees those in a window;
* FlexAttention on a GPU, where a position biases the scores or documents part the tokens;
* a few rows of queries at a time otherwise, recomputed in the backward pass: FlexAttention has none on a CPU.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from attrs import define, evolve
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from neox_gpt.attention.blocked import blocked_attention
from neox_gpt.attention.flex import flex
from neox_gpt.attention.native import causal_attention
from neox_gpt.attention.window import windowed
from neox_gpt.dropout import drop_probabilities

if TYPE_CHECKING:
    from collections.abc import Callable

    from neox_gpt.attention.sparse import BlockTable
    from neox_gpt.contracts import ScoreBias

CHUNK_ELEMENTS = {"cpu": 4 * 2**20}
GPU_CHUNK_ELEMENTS = 64 * 2**20
"""Scores that exist at once."""


@define(eq=False)  # torch.compile cannot trace the making of a frozen one
class Request:
    """How queries and keys meet.

    scale: of the scores before the bias. bias_of: `score_bias` of the position, a function of what it `prepared`; its
    heads begin at `first_head`. documents, positions: int64 [batch, keys] or None, and mask: see `model.scope.Scope`.
    dropout: probability; it acts where `keys`, int64 [batch], is given, at `site` of `model.dropout`. blocks: the keys
    that a query sees; None: all before it. causal_softmax, masked_softmax: kernels for the ops of `model.softmax`.
    block_sparse: the kernel for attention by `blocks`. window: a query sees so many keys before its own; None: all.
    softcap: c of `c tanh(score / c)`, of scores before the bias.
    """

    scale: float
    bias_of: Callable[[Any], ScoreBias | None] | None = None
    prepared: Any = None
    first_head: int = 0
    documents: Tensor | None = None
    positions: Tensor | None = None
    dropout: float = 0.0
    keys: Tensor | None = None
    site: int = 0
    blocks: BlockTable | None = None
    causal_softmax: Callable[..., Tensor] | None = None
    masked_softmax: Callable[..., Tensor] | None = None
    block_sparse: Callable[..., Tensor] | None = None
    mask: Any = None
    window: int | None = None
    softcap: float | None = None

    @property
    def by_softmax(self) -> bool:
        """Whether the probabilities are made in one piece of a few rows, by a kernel."""
        return self.causal_softmax is not None or self.masked_softmax is not None

    @property
    def bias(self) -> ScoreBias | None:
        """What is added to the scores; None where nothing is."""
        return None if self.bias_of is None else self.bias_of(self.prepared)

    @property
    def drops(self) -> bool:
        """Whether dropout applies to the probabilities."""
        return self.keys is not None and self.dropout > 0


def stores_scores(device: torch.device, *, masked: bool, drops: bool) -> bool:
    """Whether training goes by rows, whose scores are in memory: where neither torch's attention nor FlexAttention can.

    masked: by more than the order of the tokens, a bias or documents. drops: probabilities.
    """
    return drops or (masked and device.type != "cuda")


def attend(query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    """Queries [batch, heads, new, head_dim], keys and values [batch, kv heads, total, head_dim] -> as the queries.

    The last query belongs to the last key; a query sees its own key and those before it. Each kv head serves
    heads / kv heads consecutive heads.
    """
    new, total = query.shape[2], key.shape[2]
    if request.window is not None and (new == 1 or total <= request.window + 1):
        key, value = (each[:, :, -request.window - 1 :] for each in (key, value))
        return attend(query, key, value, evolve(request, window=None))
    if request.blocks is not None:
        sparse = request.block_sparse or blocked_attention
        return (sparse if new == total else _by_rows)(query, key, value, request)
    if request.by_softmax and new > 1:
        return _by_rows(query, key, value, request)
    if request.window is not None:
        return (windowed if new == total else _by_rows)(query, key, value, request)
    plain = request.bias is None and request.documents is None and request.softcap is None and not request.drops
    if plain and new in (1, total):
        if new == total and (attended := causal_attention(query, key, value, request.scale)) is not None:
            return attended
        grouped = query.shape[1] != key.shape[1]
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=new == total, scale=request.scale, enable_gqa=grouped
        )
    if query.device.type == "cuda" and new == total and not request.drops:
        return flex(query, key, value, request)
    return _by_rows(query, key, value, request)


def _by_rows(query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    batch, heads, new, _ = query.shape
    total = key.shape[2]
    at_once = CHUNK_ELEMENTS.get(query.device.type, GPU_CHUNK_ELEMENTS)
    rows = max(1, at_once // (batch * heads * total))
    if rows >= new:
        return _rows(query, key, value, request, total - new)
    parts = []
    for start in range(0, new, rows):
        some = query[:, :, start : start + rows]
        seen = total - new + start + some.shape[2]
        compute = partial(_rows, request=request, first=total - new + start)
        parts.append(checkpoint(compute, some, key[:, :, :seen], value[:, :, :seen], use_reentrant=False))
    return torch.cat(parts, 2)


def _rows(query: Tensor, key: Tensor, value: Tensor, request: Request, first: int) -> Tensor:
    """Queries `first` and on, which see no key beyond those given."""
    batch, heads, rows, width = query.shape
    kv_heads, seen = key.shape[1:3]
    grouped = query.reshape(batch, kv_heads, -1, width)  # the heads that share a key, side by side
    scores = (grouped @ key.transpose(2, 3)).view(batch, heads, rows, seen)
    index = torch.arange(seen, device=query.device)
    bias_at = request.bias
    scale = request.scale
    unmasked = request.documents is None and request.blocks is None and request.window is None
    if bias_at is not None or request.softcap is not None or not request.by_softmax:
        scores, scale = scores.to(torch.promote_types(scores.dtype, torch.float32)) * scale, 1.0
    if request.softcap is not None:
        scores = request.softcap * (scores / request.softcap).tanh()
    if bias_at is not None:
        at = index if request.positions is None else request.positions[:, None, :seen]  # [(batch, 1,) keys]
        head = torch.arange(request.first_head, request.first_head + heads, device=query.device)[:, None, None]
        bias = bias_at(head, at[..., first : first + rows, None], at[..., None, :])
        scores = scores + bias.to(scores.dtype)
    if request.causal_softmax is not None and unmasked:
        return _weighted(request.causal_softmax(scores, scale), value, request, first)
    unseen = index > index[first : first + rows, None]
    if request.documents is not None:
        own = request.documents[:, None, :seen]
        unseen = unseen | (own[..., first : first + rows, None] != own[..., None, :])
    if request.window is not None:
        unseen = unseen | (index < index[first : first + rows, None] - request.window)
    if request.blocks is not None:
        unseen = unseen | ~request.blocks.seen(first, first + rows)
    if request.masked_softmax is not None:
        return _weighted(request.masked_softmax(scores, unseen, scale), value, request, first)
    if scale != 1.0:  # a kernel for the triangle alone, which this mask is not
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) * scale
    probs = scores.masked_fill(unseen, -math.inf).softmax(-1)
    if request.blocks is not None:
        probs = probs.masked_fill(unseen, 0.0)  # a query may see nothing at all
    return _weighted(probs, value, request, first)


def _weighted(probs: Tensor, value: Tensor, request: Request, first: int) -> Tensor:
    """The values by their probabilities [batch, heads, rows, keys], those of queries `first` and on."""
    batch, heads, rows, seen = probs.shape
    kv_heads = value.shape[1]
    probs = drop_probabilities(probs, request.dropout, request.keys, request.site, request.first_head, first)
    probs = probs.to(value.dtype).view(batch, kv_heads, -1, seen)
    return (probs @ value).view(batch, heads, rows, -1)
