"""What feed-forwards give besides their tensor: auxiliary losses and metrics, added up over the layers of a pass.

They go through the model as one small vector, which a pipeline sends along with the residual stream: a loss has its
gradient wherever activations are computed again, and counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from torch import Tensor

if TYPE_CHECKING:
    from neox_core.parallel.tensor import TensorParallel

LOSSES, METRICS = "auxiliary_losses", "auxiliary_metrics"
"""Attributes of a feed-forward with the names of what it gives."""


@frozen
class Auxiliary:
    """What the feed-forwards of all layers give.

    losses, metrics: their names, and the number of layers that give them.
    """

    losses: tuple[tuple[str, int], ...]
    metrics: tuple[tuple[str, int], ...]

    def vector(self, numbers: Mapping[str, Tensor], like: Tensor, tensor: TensorParallel) -> Tensor:
        """One layer's `numbers` as fp32 [losses and metrics]; those of other layers are 0.

        Every tensor rank gives the same losses, and their gradients are added up: each has its part of them.
        """
        none = torch.zeros((), dtype=torch.float32, device=like.device)
        own = [numbers[name].float() if name in numbers else none for name, _ in self.losses]
        own += [numbers[name].detach().float() if name in numbers else none for name, _ in self.metrics]
        stacked = torch.stack(own)
        return stacked if tensor.size == 1 or not stacked.requires_grad else divided(stacked, tensor.size)

    def start(self, like: Tensor) -> Tensor:
        """The vector before the first layer; a pipeline's stages send its gradient back, so it has one."""
        size = len(self.losses) + len(self.metrics)
        return torch.zeros(size, device=like.device, requires_grad=torch.is_grad_enabled())

    def of_losses(self, total: Tensor) -> dict[str, Tensor]:
        """The sum over the layers of each loss, from the sum of all vectors."""
        parts = total[: len(self.losses)].unbind()
        return {f"feed_forward_{name}": value for (name, _), value in zip(self.losses, parts, strict=True)}

    def of_metrics(self, total: Tensor) -> dict[str, Tensor]:
        """The mean of each metric over the layers that give it."""
        parts = total.detach()[len(self.losses) :].unbind()
        return {f"feed_forward_{name}": value / n for (name, n), value in zip(self.metrics, parts, strict=True)}


def auxiliary_of(made: Iterable[Any]) -> Auxiliary | None:
    """What the feed-forwards of all layers, in any order, say that they give; None where none gives anything."""
    losses: Counter[str] = Counter()
    metrics: Counter[str] = Counter()
    for each in made:
        losses.update(getattr(each, LOSSES, ()))
        metrics.update(getattr(each, METRICS, ()))
    if not losses and not metrics:
        return None
    return Auxiliary(tuple(sorted(losses.items())), tuple(sorted(metrics.items())))


def names_of(feed_forward: Any) -> tuple[str, ...]:
    """The names of all that a feed-forward gives besides its tensor."""
    return (*getattr(feed_forward, LOSSES, ()), *getattr(feed_forward, METRICS, ()))


def fault_of(feed_forward: Any, given: Any) -> str:
    """What is wrong with the numbers that a feed-forward gives; "" where they are as it says."""
    names = names_of(feed_forward)
    if not isinstance(given, Mapping) or set(given) != set(names):
        found = ", ".join(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
        return f"gives {', '.join(names)} besides its tensor, as its attributes say, and not {found}"
    for name, value in given.items():
        if not isinstance(value, Tensor) or value.dim() or not value.is_floating_point():
            return f"gives {name} as a floating-point scalar"
    return ""


class _Divide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int) -> Tensor:
        ctx.size = size
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad / ctx.size, None


def divided(x: Tensor, size: int) -> Tensor:
    """`x`, whose gradient is divided by `size`. A compiler sees arithmetic alone."""
    if torch.compiler.is_compiling():
        return x / size + (x * (1 - 1 / size)).detach()
    result: Tensor = _Divide.apply(x, size)
    return result
