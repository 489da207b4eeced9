"""Regions of a whole tensor: those of every rank cover it once, and what does not cover it is told."""

from itertools import product
from typing import Any

import pytest
import torch

from neox_core.checkpoint.manifest import Piece
from neox_core.checkpoint.regions import fit_together, regions
from neox_core.parallel.tensor import TensorParallel

FILE = "rank-00000.weights.safetensors"


def piece(shape: tuple[int, ...], **place: Any) -> Piece:
    return Piece(file=FILE, key="k", kind="weight", name="w", dtype="F32", shape=shape, **place)


@pytest.mark.parametrize(
    ("dim", "sections", "shape"),
    [(0, (6,), (6, 4)), (1, (4,), (6, 4)), (0, (4, 4), (8, 3)), (2, (4,), (3, 2, 4, 5)), (1, (4, 6), (3, 10, 2))],
)
def test_flat_elements_of_a_part_are_the_slices_of_the_whole(
    dim: int, sections: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    whole = torch.randn(shape)
    pieces = []
    for rank in range(2):
        cut = TensorParallel(None, rank, 2).cut(dim, sections)
        part = cut.of(whole)
        for region in regions(cut, tuple(part.shape)):
            there = whole[tuple(slice(first, last) for first, last in region.slice)]
            assert torch.equal(part.reshape(-1)[region.first : region.last], there.reshape(-1))
            pieces.append(piece(shape, slice=region.slice))
    assert fit_together(pieces)
    assert not fit_together(pieces[:-1])
    assert not fit_together([*pieces, pieces[0]])


def test_slices_may_be_stored_in_runs() -> None:
    top, bottom = ((0, 2), (0, 3)), ((2, 4), (0, 3))
    runs = [piece((4, 3), slice=place, flat_range=part) for place, part in product((top, bottom), ((0, 4), (4, 6)))]
    assert fit_together(runs)
    assert not fit_together(runs[1:])
    assert not fit_together([*runs, piece((4, 3), slice=((1, 3), (0, 3)))])


def test_a_tensor_may_have_many_slices() -> None:
    """Comparing each with each would take minutes."""
    pieces = [piece((10_000, 2), slice=((row, row + 1), (at, at + 1))) for row in range(10_000) for at in range(2)]
    assert fit_together(pieces)
    assert not fit_together([*pieces[:-1], pieces[0]])
    assert not fit_together(pieces[1:])


def test_pieces_of_other_tensors_do_not_fit() -> None:
    assert not fit_together([piece((4, 3), flat_range=(0, 6)), piece((3, 4), flat_range=(6, 12))])
