"""SM3-II (Anil et al. 2019, arXiv:1901.11150, algorithm 2), with the cover of rows and columns.

Of the squared gradients of a matrix it keeps one number for each row and each column: `bounds`, each at least the sum
of every element in it. The estimate of an element is the least of the bounds that it is under, plus its new square.
The paper has no `beta`. With one the estimates are means that forget, and a bound keeps its largest so far, as that of
GPT-NeoX does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from ctypes import c_float, c_long, c_void_p
from pathlib import Path
from typing import Any

import torch
from attrs import asdict
from neox_kernels.api import native_for
from torch import Tensor

from neox_sm3.settings import SM3Settings

SOURCE = Path(__file__).with_name("step.cpp")


class SM3(torch.optim.Optimizer):
    """State of a parameter: `bound_0`, ... of each dimension, [d1, 1] and [1, d2] of a [d1, d2]; maybe a `momentum`.

    A parameter of one dimension has a bound for each element, which makes it Adagrad's.
    """

    def __init__(self, params: Iterable[dict[str, Any]], settings: SM3Settings) -> None:
        super().__init__(params, asdict(settings))
        self.kernels: Mapping[str, Callable[..., Any]] = {}

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state[weight]
                    if not state:
                        _begin(weight, group, state)
                    if self._by_kernel(weight, weight.grad, group, state):
                        continue
                    if not (group["fused"] and _one_pass(weight, weight.grad, group, state)):
                        _step(weight, weight.grad, group, state)

    def _by_kernel(self, weight: Tensor, grad: Tensor, group: dict[str, Any], state: dict[str, Any]) -> bool:
        """A matrix by a kernel; False where none was chosen or it cannot be."""
        kernel = self.kernels.get("sm3_step")
        if kernel is None or weight.ndim != 2 or not weight.is_contiguous():
            return False
        numbers = [group[name] for name in ("lr", "beta", "eps", "weight_decay", "momentum")]
        kernel(weight, grad, state["bound_0"], state["bound_1"], *numbers, state.get("momentum"))
        return True


def sm3_step(
    weight: Tensor,
    grad: Tensor,
    rows: Tensor,
    columns: Tensor,
    lr: float,
    beta: float,
    eps: float,
    weight_decay: float,
    momentum: float = 0.0,
    moved: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The op: a step of a matrix [d1, d2] with bounds [d1, 1] and [1, d2], in place. Returns what it changed.

    moved: the step before, as the weight, of which `momentum` is kept.
    """
    group = {"lr": lr, "beta": beta, "eps": eps, "weight_decay": weight_decay, "momentum": momentum}
    state = {"bound_0": rows, "bound_1": columns} | ({} if moved is None else {"momentum": moved})
    _step(weight, grad, group, state)
    return weight, *state.values()


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
    beta, axes = group["beta"], range(weight.ndim)
    squares = bounds[0].expand_as(weight).clone()
    for bound in bounds[1:]:
        torch.minimum(squares, bound, out=squares)
    if beta:
        squares.mul_(beta)
    squares.addcmul_(grad, grad, value=1 - beta)
    for dim, bound in enumerate(bounds):
        others = [each for each in axes if each != dim]
        reduced = squares.amax(others, keepdim=True) if others else squares
        bound.copy_(torch.maximum(bound, reduced) if beta else reduced)
    step = squares.add_(group["eps"]).sqrt_().reciprocal_().mul_(grad)
    if "momentum" in state:
        step = state["momentum"].lerp_(step, 1 - group["momentum"])
    weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(step, alpha=group["lr"])


def _one_pass(weight: Tensor, grad: Tensor, group: dict[str, Any], state: dict[str, Any]) -> bool:
    """A matrix in host memory by compiled code; False where that cannot be."""
    momentum = state.get("momentum")
    tensors = [weight, grad, *([] if momentum is None else [momentum])]
    library = native_for(SOURCE, *tensors) if weight.ndim == 2 and weight.numel() else None
    if library is None:
        return False
    (height, width), threads = weight.shape, min(torch.get_num_threads(), len(weight))
    rows, columns = state["bound_0"], state["bound_1"]
    grown = columns.new_zeros(threads, width)
    if group["beta"]:
        grown[0] = columns[0]
    places = [weight, grad, rows, columns, grown, momentum]
    kept = 1 - group["lr"] * group["weight_decay"]
    numbers = [group["lr"], kept, group["beta"], group["eps"], group["momentum"]]
    library.sm3(
        *(c_void_p(None if each is None else each.data_ptr()) for each in places),
        c_long(height),
        c_long(width),
        *map(c_float, numbers),
        threads,
    )
    torch.amax(grown, 0, keepdim=True, out=columns)
    return True
