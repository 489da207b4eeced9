"""Linear layers in parts are the whole layer, and know how they are cut."""

import torch
from neox_gpt.linear import ColumnLinear, Linear, RowLinear
from torch import nn

from neox_core.parallel.tensor import TensorParallel, cut_of, mark_parameters


def ranks(size: int) -> list[TensorParallel]:
    return [TensorParallel(None, rank, size) for rank in range(size)]


def test_layers_in_parts_are_the_whole_layer() -> None:
    """The sum over the ranks of down(up(x)), each with its part of the inner width, in float64."""
    whole_up, whole_down = Linear(5, 8), Linear(8, 5)
    for layer in (whole_up, whole_down):
        nn.init.normal_(layer.weight)
    x = torch.randn(2, 3, 5)
    total = torch.zeros(2, 3, 5)
    for tensor in ranks(2):
        up, down = ColumnLinear(5, 8, tensor), RowLinear(8, 5, tensor)
        with torch.no_grad():
            up.weight.copy_(up.cuts["weight"].of(whole_up.weight))
            down.weight.copy_(down.cuts["weight"].of(whole_down.weight))
        total += (x @ up.weight.T).relu() @ down.weight.T
    torch.testing.assert_close(total, whole_down(whole_up(x).relu()))


def test_parameters_know_how_they_are_cut() -> None:
    tensor = ranks(2)[1]
    up, down = ColumnLinear(4, 8, tensor), RowLinear(8, 4, tensor)
    mark_parameters(nn.ModuleList([up, down]), tensor)
    assert [cut_of(each) for each in (up.weight, up.bias, down.weight)] == [
        tensor.cut(0, (8,)),
        tensor.cut(0, (8,)),
        tensor.cut(1, (8,)),
    ]
    assert cut_of(down.bias) is None
    assert not hasattr(down.bias, "tensor_model_parallel")
    assert ColumnLinear(2, 3).cuts == {}
