"""How far a kernel is from the reference of its op, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
"""Largest error of a kernel by the dtype of its tensors, as a share of the largest number of a result."""


def error_of(kernel: Callable[..., Any], reference: Callable[..., Any], arguments: Sequence[Any]) -> float:
    """The largest difference of a result or a gradient, as a share of that tensor's largest number.

    The reference gets the same numbers in fp64. Gradients are taken for the arguments that require one.
    """
    wide = [_widened(each) for each in arguments]  # before the kernel: an op may work in place
    mine = _results(kernel, arguments, None)
    theirs = _results(reference, wide, mine[0])
    pairs = zip((*mine[0], *mine[1]), (*theirs[0], *theirs[1]), strict=True)
    return max(_distance(ours, own) for ours, own in pairs)


def _results(
    compute: Callable[..., Any], arguments: Sequence[Any], like: Sequence[Tensor] | None
) -> tuple[list[Tensor], list[Tensor]]:
    """(results, gradients); the gradients of the results are drawn anew, the same ones for the same shapes."""
    results = _listed(compute(*arguments))
    inputs = [each for each in _tensors(arguments) if each.requires_grad]
    generator = torch.Generator().manual_seed(7)
    drawn = [torch.randn(each.shape, generator=generator) for each in results]
    narrow = [each.to(one.dtype) for each, one in zip(drawn, results if like is None else like, strict=True)]
    grads = [each.to(one) for each, one in zip(narrow, results, strict=True)]
    gradients = list(torch.autograd.grad(results, inputs, grads)) if inputs else []
    return [each.detach() for each in results], gradients


def _widened(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.detach().double().clone().requires_grad_(value.requires_grad)


def _distance(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape or not bool(ours.isfinite().all()):
        return float("inf")
    largest = float(theirs.abs().max())
    return float((ours.double() - theirs).abs().max()) / max(largest, torch.finfo(torch.float32).tiny)


def times_of(compute: Callable[..., Any], arguments: Sequence[Any], repeats: int = 50) -> list[float]:
    """Seconds of forward and backward passes on a GPU, each with a cold cache, ascending."""
    cache = torch.empty(512 * 2**20, dtype=torch.uint8, device=next(_tensors(arguments)).device)
    inputs = [each for each in _tensors(arguments) if each.requires_grad]
    gradients = [torch.ones_like(each) for each in _listed(compute(*arguments))]
    seconds = []
    for _ in range(repeats + 10):
        for _ in range(4):  # longer than the host takes to start the kernels, which shall not wait for it
            cache.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        results = _listed(compute(*arguments))
        if inputs:
            torch.autograd.grad(results, inputs, gradients)
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return sorted(seconds[10:])


def _listed(returned: Any) -> list[Tensor]:
    return [returned] if isinstance(returned, Tensor) else list(returned)


def _tensors(arguments: Sequence[Any]) -> Iterator[Tensor]:
    return (each for each in arguments if isinstance(each, Tensor))
