"""How whole parameters are dealt to ranks."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from neox_deepspeed.owned import deal


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 9))
def test_every_parameter_has_one_owner_and_loads_differ_by_one_parameter_at_most(sizes: list[int], ranks: int) -> None:
    parameters = [torch.empty(size, device="meta") for size in sizes]
    dealt = deal(parameters, ranks)
    assert sorted(id(each) for some in dealt for each in some) == sorted(map(id, parameters))
    loads = [sum(each.numel() for each in some) for some in dealt]
    assert len(loads) == ranks
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_the_largest_go_first() -> None:
    sizes = [1, 2, 3, 4, 5, 6]
    dealt = deal([torch.empty(size, device="meta") for size in sizes], 3)
    assert [[each.numel() for each in some] for some in dealt] == [[6, 1], [5, 2], [4, 3]]
