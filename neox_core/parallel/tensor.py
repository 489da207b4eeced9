"""Tensor parallelism: the ranks that share each layer, and the collectives between its parts.

A column-parallel layer holds some outputs, a row-parallel one some inputs. Between the residual stream and the former
stands `enter`, between the latter and the residual stream `leave` (Shoeybi et al. 2019, arXiv:1909.08053). With
sequence parallelism each rank keeps some positions of the residual stream, so that norms and dropout are shared too
(Korthikanti et al. 2022, arXiv:2205.05198). Autograd never sees a collective: each is a function with its own gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import ProcessGroup

SEQ = 1
"""The dimension of [batch, seq, hidden] that sequence parallelism cuts."""


@frozen(eq=False)
class TensorParallel:
    """This rank's place among those that share each layer. One rank: every operation returns what it is given."""

    group: ProcessGroup | None = None
    rank: int = 0
    size: int = 1
    sequence_parallel: bool = False

    def share(self, total: int) -> int:
        """This rank's number of `total` things. Raises ValueError when they cannot be shared equally."""
        if total % self.size:
            raise ValueError(f"{total} cannot be shared by {self.size} ranks")
        return total // self.size

    def first(self, total: int) -> int:
        """The index of this rank's first of `total` things."""
        return self.rank * self.share(total)

    def cut(self, dim: int, sections: tuple[int, ...]) -> Cut:
        """How a parameter is cut along `dim`, which is made of `sections`."""
        return Cut(dim, sections, self.rank, self.size)

    def enter(self, x: Tensor) -> Tensor:
        """From the residual stream to a column-parallel layer: every rank gets all positions [batch, seq, ...]."""
        if self.size == 1:
            return x
        return _apply(_GatherSequence if self.sequence_parallel else _Copy, x, self)

    def copy(self, x: Tensor) -> Tensor:
        """What every rank has, to parts of a layer on each: the gradients of the parts are added up.

        With sequence parallelism `mark_parameters` sees to that, for all parameters that are not cut.
        """
        return x if self.size == 1 or self.sequence_parallel else _apply(_Copy, x, self)

    def leave(self, x: Tensor) -> Tensor:
        """From the partial results of a row-parallel layer to the residual stream: their sum [batch, seq, ...]."""
        if self.size == 1:
            return x
        return _apply(_ScatterSum if self.sequence_parallel else _Sum, x, self)

    def gather_last(self, x: Tensor) -> Tensor:
        """The parts of the last dimension side by side, without a gradient."""
        return x if self.size == 1 else _gather(x.detach(), self, x.dim() - 1)

    def keep(self, x: Tensor) -> Tensor:
        """This rank's part of the last dimension of what every rank has; `restore` makes it whole again."""
        return x if self.size == 1 else _apply(_Keep, x, self)

    def restore(self, part: Tensor) -> Tensor:
        """The parts that `keep` left on each rank, side by side."""
        return part if self.size == 1 else _apply(_Restore, part, self)

    def whole(self, parameter: Tensor, part: Tensor) -> Tensor:
        """`part`, this rank's of a parameter, joined with the others' where the parameter is cut. Collective."""
        cut = cut_of(parameter)
        if cut is None:
            return part
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part.contiguous(), group=self.group)
        return cut.join(parts)

    def positions(self, seq: int) -> slice:
        """Which of `seq` positions of the residual stream this rank holds."""
        if self.size == 1 or not self.sequence_parallel:
            return slice(0, seq)
        return slice(self.first(seq), self.first(seq) + self.share(seq))

    def first_position(self, held: int) -> int:
        """The first position of a rank that holds `held` of them in the residual stream."""
        return self.rank * held if self.sequence_parallel else 0

    def add_up(self, x: Tensor) -> Tensor:
        """The sum over the ranks, outside of autograd."""
        return x if self.size == 1 else _sum(x, self)

    def highest(self, x: Tensor) -> Tensor:
        """The maximum over the ranks, outside of autograd."""
        if self.size > 1:
            x = x.contiguous()
            dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group)
        return x


ALONE = TensorParallel()
"""No tensor parallelism."""


@frozen
class Cut:
    """How one rank's part lies in a whole parameter: of each section along `dim`, part `rank` of `size` equal ones.

    sections: lengths in the whole parameter. A gated MLP has two, value and gate; most parameters have one.
    """

    dim: int
    sections: tuple[int, ...]
    rank: int
    size: int

    def whole_shape(self, part: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the whole, from that of a part."""
        return (*part[: self.dim], sum(self.sections), *part[self.dim + 1 :])

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """[first, last) along `dim` in the whole, of each section."""
        found, start = [], 0
        for length in self.sections:
            part = length // self.size
            found.append((start + self.rank * part, start + (self.rank + 1) * part))
            start += length
        return tuple(found)

    def of(self, whole: Tensor) -> Tensor:
        """This rank's part of a whole tensor: a view where there is one section."""
        parts = [whole.narrow(self.dim, first, last - first) for first, last in self.ranges()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, self.dim)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The whole, from the parts of all ranks in order."""
        lengths = [length // self.size for length in self.sections]
        by_rank = [part.split(lengths, self.dim) for part in parts]
        return torch.cat([sections[index] for index in range(len(lengths)) for sections in by_rank], self.dim)


def mark_parameters(model: nn.Module, tensor: TensorParallel) -> None:
    """Tell cut parameters from whole ones: for `cut_of`, and for DeepSpeed, which knows the other mark.

    With sequence parallelism each rank's gradient of a whole parameter is of its positions, or its heads, only; they
    are added up as soon as they are there.
    """
    if tensor.size == 1:
        return
    for module in model.modules():
        cuts = getattr(module, "cuts", {})
        for name, parameter in module.named_parameters(recurse=False):
            if name in cuts:
                parameter.cut = cuts[name]
                parameter.tensor_model_parallel = True
            elif tensor.sequence_parallel and parameter.requires_grad:
                parameter.register_hook(tensor.add_up)


def cut_of(parameter: Tensor) -> Cut | None:
    """How a parameter lies in its whole, once `mark_parameters` has seen it; None: it is the whole."""
    cut: Cut | None = getattr(parameter, "cut", None)
    return cut


def _apply(function: type[torch.autograd.Function], x: Tensor, tensor: TensorParallel) -> Tensor:
    """A compiled layer is cut here: the compiler knows no gradient of a collective."""
    result: Tensor = _uncompiled(function, x, tensor) if torch.compiler.is_compiling() else function.apply(x, tensor)
    return result


@torch._disable_dynamo  # noqa: SLF001  torch.compiler.disable would import the compiler, a second, in every process
def _uncompiled(function: type[torch.autograd.Function], x: Tensor, tensor: TensorParallel) -> Tensor:
    result: Tensor = function.apply(x, tensor)
    return result


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tensor: TensorParallel) -> Tensor:
        ctx.tensor = tensor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _sum(grad, ctx.tensor), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tensor: TensorParallel) -> Tensor:
        return _sum(x, tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tensor: TensorParallel) -> Tensor:
        ctx.tensor = tensor
        return _gather(x, tensor, SEQ)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _scatter_sum(grad, ctx.tensor), None


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tensor: TensorParallel) -> Tensor:
        ctx.tensor = tensor
        return _scatter_sum(x, tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gather(grad, ctx.tensor, SEQ), None


class _Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tensor: TensorParallel) -> Tensor:
        ctx.tensor = tensor
        return _part(x, tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gather(grad, ctx.tensor, grad.dim() - 1), None


class _Restore(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tensor: TensorParallel) -> Tensor:
        ctx.tensor = tensor
        return _gather(x, tensor, x.dim() - 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _part(grad, ctx.tensor), None  # the gradient is whole on every rank, too


def _part(x: Tensor, tensor: TensorParallel) -> Tensor:
    width = tensor.share(x.shape[-1])
    return x.narrow(-1, tensor.rank * width, width).clone(memory_format=torch.contiguous_format)


def _sum(x: Tensor, tensor: TensorParallel) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=tensor.group)
    return total


def _gather(x: Tensor, tensor: TensorParallel, dim: int) -> Tensor:
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(tensor.size)]
    dist.all_gather(parts, x.contiguous(), group=tensor.group)
    return torch.cat(parts, dim)


def _scatter_sum(x: Tensor, tensor: TensorParallel) -> Tensor:
    parts = [part.contiguous() for part in x.chunk(tensor.size, SEQ)]
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts, group=tensor.group)
    return mine
