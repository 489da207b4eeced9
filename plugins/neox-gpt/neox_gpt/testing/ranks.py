"""The parts of a decoder on tensor-parallel ranks of one process: their weights, and what each has to give."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from neox_core.parallel.tensor import ALONE, Cut, TensorParallel, mark_parameters
from neox_gpt.init import generator


def cuts_of(module: nn.Module) -> dict[str, Cut]:
    """How the parameters are split, by name; those that every rank has are not there."""
    found: dict[str, Cut] = {}
    for prefix, inner in module.named_modules():
        for name, cut in getattr(inner, "cuts", {}).items():
            found[f"{prefix}.{name}" if prefix else name] = cut
    return found


def draw(module: nn.Module, tensor: TensorParallel = ALONE, scale: float = 0.3) -> nn.Module:
    """Give each parameter, biases too, numbers that follow from its name: those of the whole, then this rank's part."""
    cuts = cuts_of(module)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            cut = cuts.get(name)
            size = tuple(parameter.shape) if cut is None else cut.whole_shape(tuple(parameter.shape))
            whole = torch.randn(size, generator=generator(3, name), dtype=torch.float64) * scale
            parameter.copy_(whole if cut is None else cut.of(whole))
    mark_parameters(module, tensor)
    return module


Result: TypeAlias = "Tensor | tuple[Tensor, dict[str, Tensor]]"
"""What a module gives: a tensor, or one and losses by name."""


def gradients(module: nn.Module, run: Callable[[Tensor], Result], x: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """The result for `x`, and the gradients of `(result * weight).sum()` by the name of what they are of.

    Losses that `run` gives beside it are results too, and added to that.
    """
    given = x.detach().clone().requires_grad_()
    result = run(given)
    module.zero_grad()
    weighted(result, weight).backward()
    found = {f"the loss {name}": each.detach() for name, each in losses_of(result).items()}
    found |= {"the result": tensor_of(result).detach(), "the gradient of the input": _gradient(given)}
    return found | {f"the gradient of {name}": _gradient(each) for name, each in module.named_parameters()}


def tensor_of(result: Result) -> Tensor:
    """The output of a layer without the losses beside it."""
    return result if isinstance(result, Tensor) else result[0]


def losses_of(result: Result) -> dict[str, Tensor]:
    """The losses that a layer gives beside its output; none of most layers."""
    return {} if isinstance(result, Tensor) else result[1]


def weighted(result: Result, weight: Tensor) -> Tensor:
    """A number that depends on all of the result, and on each loss beside it."""
    total = (tensor_of(result) * weight).sum()
    for place, loss in enumerate(losses_of(result).values()):
        total = total + (place + 1) * loss
    return total


def on_rank(whole: dict[str, Tensor], tensor: TensorParallel, cuts: dict[str, Cut], seq: int) -> dict[str, Tensor]:
    """What a rank should have of what `gradients` found without tensor parallelism."""
    found = {}
    for name, value in whole.items():
        cut = cuts.get(name.removeprefix("the gradient of "))
        by_position = name in ("the result", "the gradient of the input")
        found[name] = value[:, tensor.positions(seq)] if by_position else value if cut is None else cut.of(value)
    return found


def _gradient(x: Tensor) -> Tensor:
    return torch.zeros_like(x) if x.grad is None else x.grad.clone()
