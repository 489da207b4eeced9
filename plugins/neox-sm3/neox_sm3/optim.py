"""SM3-II (Anil et al. 2019, arXiv:1901.11150, algorithm 2), with the cover of rows and columns.

Of the squared gradients of a matrix it keeps one number for each row and each column: `bounds`, each at least the sum
of every element in it. The estimate of an element is the least of the bounds that it is under, plus its new square.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from neox_core.contracts.optim import BLOCK, blocks
from neox_sm3.plugin import SM3Settings


class SM3(torch.optim.Optimizer):
    """State of a parameter: `bound_0`, ... of each dimension, [d1, 1] and [1, d2] of a [d1, d2]; maybe a `momentum`.

    A parameter of one dimension has a bound for each element, which makes it Adagrad's.
    """

    def __init__(self, params: Iterable[dict[str, Any]], settings: SM3Settings) -> None:
        options = {
            "lr": settings.lr,
            "momentum": settings.momentum,
            "beta": settings.beta,
            "eps": settings.eps,
            "weight_decay": settings.weight_decay,
        }
        super().__init__(params, options)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state[weight]
                    if not state:
                        _begin(weight, group, state)
                    _step(weight, weight.grad, group, state)


def _begin(weight: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
    for dim, length in enumerate(weight.shape):
        shape = [length if each == dim else 1 for each in range(weight.ndim)]
        state[f"bound_{dim}"] = weight.new_zeros(shape)
    if weight.ndim == 0:
        state["bound_0"] = torch.zeros_like(weight)
    if group["momentum"] > 0:
        state["momentum"] = torch.zeros_like(weight)


def _step(weight: Tensor, grad: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
    bounds = [value for name, value in state.items() if name.startswith("bound")]
    momentum = state.get("momentum")
    if weight.ndim < 2:
        (bound,) = bounds
        for each in blocks(weight, grad, bound, *(() if momentum is None else (momentum,))):
            _add_square(each[2], each[1], each[2], group["beta"])
            _move(each[0], each[1], each[2].add(group["eps"]), group, each[3] if momentum is not None else None)
        return
    first, *others = bounds
    new = [torch.zeros_like(bound) for bound in others]
    rows = weight.shape[0]
    if weight.device.type == "cpu":  # a block of rows at a time, so that all but the first operation find it in cache
        rows = max(1, BLOCK // max(1, weight[0].numel()))
    room = torch.empty_like(weight[:rows])
    for start in range(0, weight.shape[0], rows):
        part = slice(start, start + rows)
        here, slopes = weight[part], grad[part]
        squares = room[: len(here)]
        squares.copy_(first[part].expand_as(squares))
        for bound in others:
            torch.minimum(squares, bound, out=squares)
        _add_square(squares, slopes, squares, group["beta"])
        first[part] = squares.amax(tuple(range(1, weight.ndim)), keepdim=True)
        for dim, bound in enumerate(new, start=1):
            torch.maximum(
                bound, squares.amax([each for each in range(weight.ndim) if each != dim], keepdim=True), out=bound
            )
        _move(here, slopes, squares.add_(group["eps"]), group, None if momentum is None else momentum[part])
    for bound, value in zip(others, new, strict=True):
        bound.copy_(value)


def _add_square(sums: Tensor, grad: Tensor, out: Tensor, beta: float) -> None:
    """The new estimate: sum + grad^2, or their mean with weight beta."""
    if beta:
        sums.mul_(beta)
    torch.addcmul(sums, grad, grad, value=1 - beta, out=out)


def _move(weight: Tensor, grad: Tensor, squares: Tensor, group: dict[str, Any], momentum: Tensor | None) -> None:
    if group["weight_decay"]:
        weight.mul_(1 - group["lr"] * group["weight_decay"])
    if momentum is None:
        weight.addcmul_(grad, squares.rsqrt_(), value=-group["lr"])
    else:
        step = squares.rsqrt_().mul_(grad)
        momentum.lerp_(step, 1 - group["momentum"])
        weight.sub_(momentum, alpha=group["lr"])
