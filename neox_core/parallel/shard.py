"""A run of elements of one parameter that this rank stores or steps."""

from __future__ import annotations

from attrs import frozen
from torch import Tensor

from neox_core.parallel.tensor import Cut


@frozen(eq=False)
class Shard:
    """A run of elements of one parameter, counted in the flattened parameter and in what the optimizer steps.

    name, shape: the whole parameter as the model has it. first, count: elements [first, first + count) of it.
    stepped: the tensor in the optimizer's groups that holds them, from element `offset` of it on. whole: whether it has
    the whole parameter, in its own shape; else it is a flat partition. cut: how the parameter lies in the one that the
    ranks of a tensor group hold together; None: it is the whole. stores: whether this rank is the one of the
    data-parallel ranks that stores it; None: where it is whole, they take turns.
    """

    name: str
    shape: tuple[int, ...]
    first: int
    count: int
    stepped: Tensor
    offset: int
    whole: bool
    cut: Cut | None = None
    stores: bool | None = None

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """Of the parameter, with the parts that other tensor-parallel ranks hold."""
        return self.shape if self.cut is None else self.cut.whole_shape(self.shape)

    def part_of(self, tensor: Tensor) -> Tensor:
        """The elements of this shard in a tensor laid out as `stepped` is: a view, [count]."""
        return tensor.detach().reshape(-1).narrow(0, self.offset, self.count)
