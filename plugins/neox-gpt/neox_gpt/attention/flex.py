"""FlexAttention (arXiv:2412.05496): attention on a GPU where a position biases the scores or documents part the tokens.

It is compiled for who sees whom, which is told in tiles of 128 tokens: those that it leaves out, those that it computes
whole, and those in which a rule says so for each pair.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from neox_gpt.attention.scores import Request

TILE = 128
"""Tokens on a side of what is skipped or computed."""


def flex(query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    """As `model.scores.attend`, without dropout, of all queries."""
    mask = request.mask
    if mask is None:
        documents = request.documents
        mask = causal_mask(query.shape[2], query.device) if documents is None else document_mask(documents)
    return flex_by(mask, query, key, value, request)


def flex_by(mask: Any, query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    """The same by a BlockMask."""
    grouped = query.shape[1] != key.shape[1]
    result: Tensor = compiled()(
        query, key, value, score_mod=_biased(request), block_mask=mask, scale=request.scale, enable_gqa=grouped
    )
    return result


def _biased(request: Request) -> Callable[..., Tensor] | None:
    bias, positions, first_head = request.bias, request.positions, request.first_head
    cap = request.softcap
    if bias is None and cap is None:
        return None

    def biased(score: Tensor, sample: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        if bias is None:
            return score
        if positions is not None:
            row, column = positions[sample, row], positions[sample, column]
        return score + bias(head + first_head, row, column).to(score.dtype)

    return biased


@cache
def compiled() -> Callable[..., Any]:
    """Torch's flex attention, compiled once in a process."""
    from torch.nn.attention.flex_attention import flex_attention

    function: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    return function


def mask_of_pass(documents: Tensor | None) -> Any:
    """`document_mask` for all layers of a pass; None where no layer goes by FlexAttention."""
    return None if documents is None or documents.device.type != "cuda" else document_mask(documents)


@lru_cache(maxsize=16)
def causal_mask(seq: int, device: torch.device, window: int | None = None) -> Any:
    """The BlockMask of what is before a token, or of so many tokens before it."""

    def seen(sample: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return column <= row if window is None else (column <= row) & (row - column <= window)

    return _mask(*_before(seq, window, device), seq, seen)


def _before(seq: int, window: int | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tiles below the diagonal with a pair that is seen, and with no other: bool [1, tiles, tiles] each."""
    index = torch.arange(-(-seq // TILE), device=device)
    back = (index[:, None] - index)[None]
    if window is None:
        return back > 0, back > 0
    return (back > 0) & ((back - 1) * TILE < window), (back > 0) & ((back + 1) * TILE - 1 <= window)


def document_mask(documents: Tensor, window: int | None = None) -> Any:
    """The BlockMask of int64 [batch, seq] documents, which never decrease along a sample, and of a window.

    So what a tile holds follows from the first and the last of its rows and columns: no pair of tokens is looked at.
    """

    def seen(sample: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        own = (column <= row) & (documents[sample, row] == documents[sample, column])
        return own if window is None else own & (row - column <= window)

    seq = documents.shape[1]
    near = _before(seq, window, documents.device)
    first = documents[:, ::TILE]
    last = torch.cat((documents[:, TILE - 1 :: TILE], documents[:, -1:]), 1)[:, : first.shape[1]]
    some = near[0] & (first[:, :, None] == last[:, None])
    return _mask(some, some & near[1] & (last[:, :, None] == first[:, None]), seq, seen)


def _mask(some: Tensor, whole: Tensor, seq: int, rule: Callable[..., Tensor]) -> Any:
    """some, whole: bool [batch, tiles, tiles], tiles below the diagonal with a pair that is seen, and with no other."""
    from torch.nn.attention.flex_attention import BlockMask

    own = torch.eye(some.shape[1], dtype=torch.bool, device=some.device)
    whole = whole.clone()
    whole[:, seq // TILE :] = False  # the last tile may have fewer rows
    lists = [each for tile in (some & ~whole | own, whole) for each in tile_lists(tile[:, None])]
    return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=TILE, mask_mod=rule, seq_lengths=(seq, seq))


def tile_lists(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """How many of each row, int32 [..., rows], and which, these first; tiles: bool [..., rows, columns]."""
    order = tiles.int().sort(dim=-1, descending=True, stable=True).indices
    return tiles.sum(-1, dtype=torch.int32), order.int()
