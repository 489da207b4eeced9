"""Parts of parameters: of a whole, and back to it."""

import pytest
import torch

from neox_core.parallel.tensor import ALONE, TensorParallel

CUTS = {
    "rows": (0, (6,), (6, 5)),
    "columns": (1, (6,), (5, 6)),
    "value and gate": (0, (4, 4), (8, 3)),
    "unequal sections": (0, (4, 2, 2), (8, 3)),
    "bias": (0, (8,), (8,)),
}


def ranks(size: int) -> list[TensorParallel]:
    return [TensorParallel(None, rank, size) for rank in range(size)]


@pytest.mark.parametrize("name", CUTS)
def test_parts_make_the_whole(name: str) -> None:
    dim, sections, shape = CUTS[name]
    whole = torch.randn(shape)
    cuts = [tensor.cut(dim, sections) for tensor in ranks(2)]
    parts = [cut.of(whole) for cut in cuts]
    assert torch.equal(cuts[0].join(parts), whole)
    assert {cut.whole_shape(tuple(part.shape)) for cut, part in zip(cuts, parts, strict=True)} == {shape}


def test_each_rank_has_its_part_of_each_section() -> None:
    whole = torch.arange(8)  # value 0 to 3, gate 4 to 7
    assert [tensor.cut(0, (4, 4)).of(whole).tolist() for tensor in ranks(2)] == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_unequal_shares_are_refused() -> None:
    with pytest.raises(ValueError, match="7 cannot be split over 2 ranks"):
        ranks(2)[0].share(7)


def test_alone_nothing_is_done() -> None:
    x = torch.randn(1, 2, 3)
    assert all(each is x for each in (ALONE.enter(x), ALONE.leave(x), ALONE.copy(x), ALONE.add_up(x), ALONE.highest(x)))
    assert ALONE.positions(7) == slice(0, 7)


def test_positions_of_sequence_parallelism() -> None:
    second = TensorParallel(None, 1, 2, sequence_parallel=True)
    assert second.positions(8) == slice(4, 8)
    assert second.first_position(4) == 4
    assert ranks(2)[1].positions(8) == slice(0, 8)
    assert ranks(2)[1].first_position(8) == 0
