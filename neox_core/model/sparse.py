"""Which blocks of keys each block of queries attends to, as tables; who works with them is an executor."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional as F


@frozen(eq=False)
class Rows:
    """Rows of blocks with equally many columns.

    head, row: [rows]; column: [rows, columns], ascending. head counts those of the table, not of the model. diagonal:
    whether the last column of every row is the block of its own queries, or no row has that block.
    """

    head: Tensor
    row: Tensor
    column: Tensor
    diagonal: bool

    def split(self, most: int) -> Iterator[Rows]:
        """The same in parts of at most so many rows."""
        if self.row.numel() <= most:
            yield self
            return
        parts = zip(*(each.split(most) for each in (self.head, self.row, self.column)), strict=True)
        yield from (Rows(*part, self.diagonal) for part in parts)


class BlockTable:
    """A layout bool [heads, query blocks, key blocks], lower triangular, as rows to gather; `block` in tokens."""

    def __init__(self, layout: Tensor, block: int, device: torch.device | str = "cpu") -> None:
        self.layout = layout.to(device)
        self.block = block
        self.num_heads, self.num_blocks, _ = layout.shape
        self.rows = tuple(_group(layout.cpu(), torch.device(device)))

    def first(self, num_blocks: int) -> BlockTable:
        """The table of the first blocks of the sequence."""
        if num_blocks == self.num_blocks:
            return self
        return BlockTable(self.layout[:, :num_blocks, :num_blocks], self.block, self.layout.device)

    @cached_property
    def by_row(self) -> tuple[Tensor, Tensor]:
        """(starts, columns), int32: block r of head h sees columns[starts[i]:starts[i + 1]], i = h * blocks + r."""
        return _lists(self.layout)

    @cached_property
    def by_column(self) -> tuple[Tensor, Tensor]:
        """The same for key blocks: the query blocks that see them."""
        return _lists(self.layout.mT)

    def seen(self, first: int, total: int) -> Tensor:
        """Which keys the queries from `first` on attend to: bool [heads, total - first, total]."""
        queries = torch.arange(first, total, device=self.layout.device)
        keys = torch.arange(total, device=self.layout.device)
        blocks = self.layout[:, queries // self.block][:, :, keys // self.block]
        return blocks & (keys <= queries[:, None])


def _lists(layout: Tensor) -> tuple[Tensor, Tensor]:
    counts = layout.sum(-1).flatten()
    return F.pad(counts.cumsum(0), (1, 0)).int(), layout.flatten(0, 1).nonzero()[:, 1].int()


def _group(layout: Tensor, device: torch.device) -> Iterator[Rows]:
    """The rows of all heads by their number of columns; those that see nothing are left out."""
    heads, blocks, _ = layout.shape
    counts = layout.sum(-1).flatten()
    own = layout.diagonal(dim1=1, dim2=2).flatten()
    columns = layout.reshape(heads * blocks, blocks).nonzero()[:, 1]
    starts = counts.cumsum(0) - counts
    kind = counts * 2 + own
    for each in kind.unique().tolist():
        count, diagonal = divmod(each, 2)
        if count:
            chosen = (kind == each).nonzero()[:, 0]
            column = columns[starts[chosen][:, None] + torch.arange(count)]
            placed = (part.to(device) for part in (chosen // blocks, chosen % blocks, column))
            yield Rows(*placed, bool(diagonal))
