"""The blocks of a table as lists for the programs of block-sparse attention.

A program has `tall` tokens, which are several rows of a table of small blocks: its list has each block that some row
sees, with bits that say which. So a tile of small blocks is as high as one of large blocks.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from attrs import field, frozen
from neox_gpt.api import BlockTable
from torch import Tensor
from torch.nn import functional as F

from neox_triton.choices import LONGEST_LIST, TALL


@frozen(eq=False)
class Lists:
    """Of groups of rows: group g of head h has entries starts[i] to starts[i + 1], i = h * groups + g; all int32.

    blocks: the block of an entry. bits: which rows of the group see it, from the lowest bit.
    """

    starts: Tensor
    blocks: Tensor
    bits: Tensor

    def to(self, device: torch.device) -> Lists:
        """The same lists on a device."""
        return Lists(*(each.to(device) for each in self.tensors))

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.starts, self.blocks, self.bits


@frozen(eq=False)
class Work:
    """Who sums for which keys: program i for group columns[i] % groups of kv head columns[i] // groups, int32 each.

    It has part segments[i] of the lists, at most LONGEST_LIST tokens of each, and leaves its sums at slots[i] of the
    partial ones; -1: it has all there are. shared: the groups whose sums are partial, at first_slots and the following
    counts, which are added up afterwards. num_slots: of all.
    """

    columns: Tensor
    segments: Tensor
    slots: Tensor
    shared: Tensor
    first_slots: Tensor
    counts: Tensor
    num_slots: int = field(kw_only=True)

    def to(self, device: torch.device) -> Work:
        """The same work on a device."""
        tensors = self.columns, self.segments, self.slots, self.shared, self.first_slots, self.counts
        return Work(*(each.to(device) for each in tensors), num_slots=self.num_slots)


@frozen(eq=False)
class Plan:
    """The lists of one table, of its rows and of its columns, and who works on the columns."""

    rows: Lists
    columns: Lists
    work: Work


_PLANS: WeakKeyDictionary[BlockTable, dict[int, Plan]] = WeakKeyDictionary()


def plan_of(table: BlockTable, heads_of_a_key: int) -> Plan:
    """Made once for a table. heads_of_a_key: heads of queries that have their keys in common."""
    found = _PLANS.setdefault(table, {})
    if heads_of_a_key not in found:
        layout = table.layout.cpu()
        rows, columns = (_lists(each, table.block) for each in (layout, layout.mT))
        work = _work(columns.starts, len(layout), heads_of_a_key, table.block)
        found[heads_of_a_key] = Plan(rows.to(table.device), columns.to(table.device), work.to(table.device))
    return found[heads_of_a_key]


def tall_of(block: int) -> int:
    """Tokens of a group."""
    return max(block, TALL)


def entries_of(block: int) -> int:
    """The longest part of a list that one program sums over, in entries."""
    return LONGEST_LIST // block


def _lists(layout: Tensor, block: int) -> Lists:
    """layout: bool [heads, rows, columns], of which a head at a time is spread out in whole numbers."""
    rows = tall_of(block) // block
    power = torch.arange(rows, dtype=torch.int32)[:, None]
    counts, blocks, bits = [], [], []
    for head in layout:
        cells = F.pad(head, (0, 0, 0, -len(head) % rows)).unflatten(0, (-1, rows))
        whole = (cells.int() << power).sum(1, dtype=torch.int32)
        some = whole != 0
        counts.append(some.sum(1))
        blocks.append(some.nonzero()[:, 1].int())
        bits.append(whole[some])
    starts = F.pad(torch.cat(counts).cumsum(0), (1, 0)).int()
    return Lists(starts, torch.cat(blocks), torch.cat(bits))


def _work(starts: Tensor, heads: int, heads_of_a_key: int, block: int) -> Work:
    lengths = starts.diff().view(heads // heads_of_a_key, heads_of_a_key, -1).amax(1).flatten()
    parts = (lengths.long() + entries_of(block) - 1).div(entries_of(block), rounding_mode="floor").clamp(min=1)
    columns = torch.arange(len(parts)).repeat_interleave(parts)
    segments = torch.arange(len(columns)) - (parts.cumsum(0) - parts).repeat_interleave(parts)
    partial = (parts > 1).repeat_interleave(parts)
    shared = (parts > 1).nonzero()[:, 0]
    slots = torch.where(partial, partial.cumsum(0) - 1, -1)
    counts = parts[shared]
    numbers = columns, segments, slots, shared, counts.cumsum(0) - counts, counts
    return Work(*(each.int() for each in numbers), num_slots=int(partial.sum()))
