"""Tensor parallelism: the ranks that share each layer, and the collectives between its parts.

A column-parallel layer holds some outputs, a row-parallel layer some inputs. `enter` goes from the residual stream
to the former, `leave` from the latter back to the residual stream (Shoeybi et al. 2019, arXiv:1909.08053). With
sequence parallelism each rank keeps some positions of the residual stream, so that norms and dropout are split too
(Korthikanti et al. 2022, arXiv:2205.05198). Autograd never sees a collective: each is a function with its own gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

SEQ = 1
"""The dimension of [batch, seq, hidden] that sequence parallelism splits."""

Move = Callable[[Tensor, "TensorParallel"], Tensor]
Collective = tuple[Move, Move]
"""What is computed, and what is computed of its gradient."""


@frozen(eq=False)
class TensorParallel:
    """This rank's position among the ranks that share each layer. With one rank, every operation returns its input.
    exchange: makes sums and maxima over the ranks in place of torch's `all_reduce`.
    """

    group: ProcessGroup | None = None
    rank: int = 0
    size: int = 1
    sequence_parallel: bool = False
    exchange: Callable[[Tensor, dist.ReduceOp.RedOpType], Tensor] | None = None

    def share(self, total: int) -> int:
        """This rank's number of `total` items. Raises ValueError when they cannot be split equally."""
        if total % self.size:
            raise ValueError(f"{total} cannot be split over {self.size} ranks")
        return total // self.size

    def first(self, total: int) -> int:
        """The index of this rank's first item of `total`."""
        return self.rank * self.share(total)

    def cut(self, dim: int, sections: tuple[int, ...]) -> Cut:
        """The split of a parameter along `dim`, which consists of `sections`."""
        return Cut(dim, sections, self.rank, self.size)

    def enter(self, x: Tensor) -> Tensor:
        """From the residual stream to a column-parallel layer: every rank gets all positions [batch, seq, ...]."""
        if self.size == 1:
            return x
        return _apply(_GATHER_SEQUENCE if self.sequence_parallel else _COPY, x, self)

    def copy(self, x: Tensor) -> Tensor:
        """From a tensor that every rank has to the parts of a layer: adds up the gradients of the parts.

        With sequence parallelism `mark_parameters` does this, for all parameters that are not split.
        """
        return x if self.size == 1 or self.sequence_parallel else _apply(_COPY, x, self)

    def leave(self, x: Tensor) -> Tensor:
        """From the partial results of a row-parallel layer to the residual stream: their sum [batch, seq, ...]."""
        if self.size == 1:
            return x
        return _apply(_SCATTER_SUM if self.sequence_parallel else _SUM, x, self)

    def gather_last(self, x: Tensor) -> Tensor:
        """Concatenate the parts of the last dimension, without a gradient."""
        return x if self.size == 1 else _gather(x.detach(), self)

    def keep(self, x: Tensor) -> Tensor:
        """This rank's part of the last dimension of a tensor that every rank has; `restore` is the inverse."""
        return x if self.size == 1 else _apply(_KEEP, x, self)

    def restore(self, part: Tensor) -> Tensor:
        """Concatenate the parts that `keep` left on each rank."""
        return part if self.size == 1 else _apply(_RESTORE, part, self)

    def whole(self, parameter: Tensor, part: Tensor) -> Tensor:
        """`part`, this rank's of a parameter, joined with the other ranks' where the parameter is split. Collective."""
        cut = cut_of(parameter)
        if cut is None:
            return part
        parts = [torch.empty_like(part) for _ in range(cut.size)]
        dist.all_gather(parts, part.contiguous(), group=getattr(parameter, "spread", self).group)
        return cut.join(parts)

    def positions(self, seq: int) -> slice:
        """The positions of the residual stream, out of `seq`, that this rank holds."""
        if self.size == 1 or not self.sequence_parallel:
            return slice(0, seq)
        return slice(self.first(seq), self.first(seq) + self.share(seq))

    def first_position(self, held: int) -> int:
        """The first position that this rank holds in the residual stream, where each rank holds `held`."""
        return self.rank * held if self.sequence_parallel else 0

    def add_up(self, x: Tensor) -> Tensor:
        """The sum over the ranks, outside of autograd."""
        return x if self.size == 1 else _sum(x, self)

    def highest(self, x: Tensor) -> Tensor:
        """The maximum over the ranks, outside of autograd."""
        return x if self.size == 1 else _sum(x, self, dist.ReduceOp.MAX)


ALONE = TensorParallel()
"""No tensor parallelism."""


@frozen
class Cut:
    """One rank's part of a whole parameter: of each section along `dim`, part `rank` of `size` equal ones.

    sections: lengths in the whole parameter. A gated MLP has two, value and gate; most parameters have one.
    """

    dim: int
    sections: tuple[int, ...]
    rank: int
    size: int

    def whole_shape(self, part: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the whole, from the shape of a part."""
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
    """Mark split parameters: for `cut_of`, and for DeepSpeed, which uses another mark. A module's `spreads` names those
    of `cuts` that are split over data-parallel ranks instead: their attribute `spread` says how.

    With sequence parallelism each rank's gradient of a whole parameter covers only its positions or heads; a hook adds
    the gradients up as soon as they are computed.
    """
    for module in model.modules():
        cuts, spreads = getattr(module, "cuts", {}), getattr(module, "spreads", {})
        for name, parameter in module.named_parameters(recurse=False):
            if name in spreads:
                parameter.cut, parameter.spread = cuts[name], spreads[name]
            elif tensor.size > 1 and name in cuts:
                parameter.cut = cuts[name]
                parameter.tensor_model_parallel = True
            elif tensor.sequence_parallel and parameter.requires_grad:
                parameter.register_hook(tensor.add_up)


def cut_of(parameter: Tensor) -> Cut | None:
    """The split of a parameter after `mark_parameters`; None: it is whole."""
    cut: Cut | None = getattr(parameter, "cut", None)
    return cut


def _apply(collective: Collective, x: Tensor, tensor: TensorParallel) -> Tensor:
    """Apply a collective. A compiled layer has a graph break here: the compiler does not know its gradient."""
    apply = _uncompiled if torch.compiler.is_compiling() else _WithItsGradient.apply
    result: Tensor = apply(x, tensor, *collective)
    return result


@torch._disable_dynamo  # noqa: SLF001  torch.compiler.disable would import the compiler, a second, in every process
def _uncompiled(x: Tensor, tensor: TensorParallel, *collective: Any) -> Any:
    return _WithItsGradient.apply(x, tensor, *collective)


class _WithItsGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tensor: TensorParallel, forward: Move, backward: Move) -> Tensor:
        ctx.tensor, ctx.move = tensor, backward
        return forward(x, tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.move(grad, ctx.tensor), None, None, None


def _same(x: Tensor, tensor: TensorParallel) -> Tensor:
    return x.view_as(x)


def _part(x: Tensor, tensor: TensorParallel) -> Tensor:
    width = tensor.share(x.shape[-1])
    return x.narrow(-1, tensor.rank * width, width).clone(memory_format=torch.contiguous_format)


def _sum(x: Tensor, tensor: TensorParallel, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
    if tensor.exchange is not None:
        return tensor.exchange(x, op)
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, op, group=tensor.group)
    return total


def _gather(x: Tensor, tensor: TensorParallel, dim: int = -1) -> Tensor:
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(tensor.size)]
    dist.all_gather(parts, x.contiguous(), group=tensor.group)
    return torch.cat(parts, dim)


def _gather_sequence(x: Tensor, tensor: TensorParallel) -> Tensor:
    return _gather(x, tensor, SEQ)


def _scatter_sum(x: Tensor, tensor: TensorParallel) -> Tensor:
    parts = [part.contiguous() for part in x.chunk(tensor.size, SEQ)]
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts, group=tensor.group)
    return mine


_COPY: Collective = _same, _sum
_SUM: Collective = _sum, _same
_GATHER_SEQUENCE: Collective = _gather_sequence, _scatter_sum
_SCATTER_SUM: Collective = _scatter_sum, _gather_sequence
_KEEP: Collective = _part, _gather
_RESTORE: Collective = _gather, _part  # the gradient is whole on every rank, too
