"""Which blocks of keys each block of queries attends to, as tables for the code that computes attention."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional as F

TALLEST = 64
"""Queries of a group, in tokens: taller products are not faster."""
_SHORTER = 4
"""Beginnings of a table that are kept: a curriculum has hundreds of lengths, one after the other."""
_EXTRA = 34
"""What gathering the keys of a group costs, as so many more of its queries (measured on a CPU, blocks of 16 to 128)."""


@frozen(eq=False)
class Rows:
    """Groups of `tall` rows of blocks one below the other, with equally many columns: what one product is made of.

    head, row: [groups], row the first of its group; column: [groups, columns], the blocks that some row of the group
    sees. head counts those of the table, not of the model. diagonal: whether the last `tall` columns are the blocks of
    the group's own queries, of which those ahead are not seen. hidden: bool [groups, tall, some], which of the first
    columns a row does not see; it sees all others.
    """

    head: Tensor
    row: Tensor
    column: Tensor
    hidden: Tensor
    diagonal: bool

    @property
    def tall(self) -> int:
        """The number of queries of a row of tiles."""
        tall: int = self.hidden.shape[1]
        return tall

    def split(self, most: int) -> Iterator[Rows]:
        """The same in parts of at most so many groups."""
        if self.row.numel() <= most:
            yield self
            return
        parts = zip(*(each.split(most) for each in (self.head, self.row, self.column, self.hidden)), strict=True)
        yield from (Rows(head, row, column, hidden, self.diagonal) for head, row, column, hidden in parts)


class BlockTable:
    """A layout bool [heads, query blocks, key blocks] as lists; `block` in tokens.

    causal: the layout is lower triangular, and no token sees a later one; False: a token sees all of a block.
    What it holds goes with the number of blocks that are seen, once for heads that are alike.
    """

    def __init__(self, layout: Tensor, block: int, device: torch.device | str = "cpu", *, causal: bool = True) -> None:
        self.block, self.device, self.causal = block, torch.device(device), causal
        self.num_heads, self.num_blocks, _ = layout.shape
        patterns, self._heads = _patterns(layout.cpu())
        self._seen = [_lists(each) for each in patterns]
        self.rows = tuple(_group(patterns, self._heads, block, self.device, causal=causal))
        self._shorter: dict[int, BlockTable] = {}
        self._latest: tuple[int, Tensor] | None = None

    @property
    def layout(self) -> Tensor:
        """The layout as given, computed again."""
        return self._between(0, self.num_blocks)

    def first(self, num_blocks: int) -> BlockTable:
        """The table of the first blocks of the sequence."""
        if num_blocks == self.num_blocks:
            return self
        if num_blocks not in self._shorter:
            if len(self._shorter) == _SHORTER:
                del self._shorter[next(iter(self._shorter))]
            layout = self._on_host(0, num_blocks)[:, :, :num_blocks]
            self._shorter[num_blocks] = BlockTable(layout, self.block, self.device, causal=self.causal)
        return self._shorter[num_blocks]

    def seen(self, first: int, total: int) -> Tensor:
        """Which keys the queries from `first` on attend to: bool [heads, total - first, total]."""
        queries = torch.arange(first, total, device=self.device)
        keys = torch.arange(total, device=self.device)
        start, end = first // self.block, -(-total // self.block)
        rows = self._row(start) if end == start + 1 else self._between(start, end)
        seen = rows[:, queries // self.block - start][:, :, keys // self.block]
        return seen & (keys <= queries[:, None]) if self.causal else seen

    def _row(self, row: int) -> Tensor:
        """Kept until another one is asked for: while text is generated, by every layer for every token of a block."""
        if self._latest is None or self._latest[0] != row:
            self._latest = row, self._between(row, row + 1)
        return self._latest[1]

    def _between(self, first: int, last: int) -> Tensor:
        """Rows of the layout: bool [heads, last - first, blocks]."""
        return self._on_host(first, last).to(self.device)

    def _on_host(self, first: int, last: int) -> Tensor:
        rows = torch.zeros(self.num_heads, last - first, self.num_blocks, dtype=torch.bool)
        for heads, (starts, columns) in zip(self._heads, self._seen, strict=True):
            row = torch.arange(last - first).repeat_interleave(starts[first : last + 1].diff())
            one = torch.zeros_like(rows[0])
            one[row, columns[starts[first] : starts[last]]] = True
            rows[heads] = one
        return rows


def _lists(layout: Tensor) -> tuple[Tensor, Tensor]:
    """Where the columns of each row start, and the columns, of a layout of any number of heads."""
    counts = layout.sum(-1).flatten()
    return F.pad(counts.cumsum(0), (1, 0)).int(), layout.flatten(0, -2).nonzero()[:, 1].int()


def _patterns(layout: Tensor) -> tuple[list[Tensor], list[list[int]]]:
    """What different heads see, bool [query blocks, key blocks] each, and which heads these are."""
    if layout.stride(0) == 0:
        return [layout[0]], [list(range(layout.shape[0]))]
    patterns: list[Tensor] = []
    heads: list[list[int]] = []
    for head, one in enumerate(layout):
        place = next((at for at, other in enumerate(patterns) if torch.equal(one, other)), len(patterns))
        if place == len(patterns):
            patterns.append(one)
            heads.append([])
        heads[place].append(head)
    return patterns, heads


def _group(
    patterns: Sequence[Tensor], heads: Sequence[list[int]], block: int, device: torch.device, *, causal: bool
) -> Iterator[Rows]:
    """The groups of all heads by their shape; rows that see nothing are left out."""
    found: dict[tuple[int, int, int, bool], list[tuple[Tensor, ...]]] = defaultdict(list)
    blocks, height = patterns[0].shape[0], _height(patterns, block)
    whole = blocks - blocks % height
    for pattern, of_heads in zip(patterns, heads, strict=True):
        head = torch.tensor(of_heads)
        for first, last, tall in ((0, whole, height), (whole, blocks, blocks - whole)):
            for kind, row, column, hidden in _alike(pattern, first, last, tall, causal) if first < last else ():
                each = head.repeat_interleave(row.numel()), row.repeat(head.numel())
                shape = (tall, *kind)
                found[shape].append((*each, column.repeat(head.numel(), 1), hidden.repeat(head.numel(), 1, 1)))
    for (*_, diagonal), parts in sorted(found.items(), key=lambda item: item[0]):
        head, row, column, hidden = (torch.cat(each).to(device) for each in zip(*parts, strict=True))
        yield Rows(head, row, column, hidden, diagonal)


def _height(patterns: Sequence[Tensor], block: int) -> int:
    """How many rows make a group: as many as cost least, counted on the first pattern. One where the diagonal has gaps,
    since a query that is in a group for others' keys alone would have none of its own.
    """
    if not all(bool(each.diagonal().all()) for each in patterns):
        return 1

    def cost(tall: int) -> int:
        groups = F.pad(patterns[0], (0, 0, 0, -patterns[0].shape[0] % tall)).unflatten(0, (-1, tall))
        return int(groups.any(1).sum()) * (tall * block + _EXTRA)

    most = min(TALLEST // block, patterns[0].shape[0])
    heights: list[int] = [2**power for power in range(max(most, 1).bit_length())]
    return min(heights, key=cost)


def _alike(
    pattern: Tensor, first: int, last: int, tall: int, causal: bool
) -> Iterator[tuple[tuple[int, int, bool], Tensor, Tensor, Tensor]]:
    """((columns, hidden ones, diagonal), row, column, hidden) of the groups of rows first to last, by their shape.

    Columns that only some rows see come first. Of a causal pattern, the group's own come last, where it sees all that
    are not ahead.
    """
    blocks = pattern.shape[1]
    cells = pattern[first:last].unflatten(0, (-1, tall))
    row = torch.arange(first, last, tall)
    mine = row[:, None] + torch.arange(tall)
    some, every = cells.any(1), cells.all(1)
    own = torch.zeros_like(some)
    if causal:
        own.scatter_(1, mine, some.gather(1, mine))
    seen = cells.gather(2, mine[:, None].expand(-1, tall, -1))
    gaps = (~seen).tril().flatten(1).any(1) & (tall > 1) & causal
    partly = some & ~own & (~every | gaps[:, None])
    column = torch.cat([partly, some & ~own & ~partly, own], 1).nonzero()[:, 1] % blocks
    counts, hidden = some.sum(1), torch.where(gaps, some.sum(1), partly.sum(1))
    starts = counts.cumsum(0) - counts
    kinds = torch.stack([counts, hidden, own.any(1)], 1)
    names, kind = kinds.unique(dim=0, return_inverse=True)
    for place, (count, some_hidden, diagonal) in enumerate(names.tolist()):
        if count:
            chosen = (kind == place).nonzero()[:, 0]
            columns = column[starts[chosen][:, None] + torch.arange(count)]
            at = columns[:, None, :some_hidden].expand(-1, tall, -1)
            yield (count, some_hidden, bool(diagonal)), row[chosen], columns, ~cells[chosen].gather(2, at)
