"""Maps the flat elements of one tensor-parallel rank's part to regions of the whole tensor, and back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import prod

from attrs import frozen

from neox_core.checkpoint.manifest import Piece, Slice
from neox_core.parallel.tensor import Cut


@frozen
class Region:
    """One section of a split parameter. slice: in the whole. first, last: its elements in the flattened part."""

    slice: Slice
    first: int
    last: int


def regions(cut: Cut, part_shape: tuple[int, ...]) -> Iterator[Region]:
    """The regions of the whole in a part, in the order of the part's elements.

    Each section is contiguous: of several, those of each index of the dimensions before come one after the other.
    """
    start, several = 0, len(cut.sections) > 1
    before = [[(at, at + 1) for at in range(n)] if several else [(0, n)] for n in part_shape[: cut.dim]]
    after = tuple((0, length) for length in part_shape[cut.dim + 1 :])
    for place in ((*first, section, *after) for *first, section in product(*before, cut.ranges())):
        count = prod(high - low for low, high in place)
        yield Region(place, start, start + count)
        start += count


def fit_together(pieces: Sequence[Piece]) -> bool:
    """Whether the pieces agree on the shape of their tensor and cover it exactly once."""
    shape, dtype = pieces[0].shape, pieces[0].dtype
    if any((piece.shape, piece.dtype) != (shape, dtype) for piece in pieces):
        return False
    by_region: dict[Slice, list[tuple[int, int]]] = defaultdict(list)
    for piece in pieces:
        region = piece.slice or tuple((0, length) for length in shape)
        by_region[region].append(piece.span)
    for region, ranges in by_region.items():
        ranges.sort()
        elements = prod(last - first for first, last in region)
        joined = all(one[1] == other[0] for one, other in pairwise(ranges))
        if not joined or ranges[0][0] != 0 or ranges[-1][1] != elements:
            return False
    return _fill([*by_region], shape)


def _fill(slices: Sequence[Slice], shape: tuple[int, ...]) -> bool:
    """Whether slices cover a shape once: along each dimension one after the other, or side by side in the next ones."""
    if not shape:
        return len(slices) == 1
    rows: dict[tuple[int, int], list[Slice]] = defaultdict(list)
    for row, *rest in slices:
        rows[row].append(tuple(rest))
    place = 0
    for first, last in sorted(rows):
        if first != place:
            return False
        place = last
    return place == shape[0] and all(_fill(each, shape[1:]) for each in rows.values())
