"""How long a kernel takes on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from neox_kernels.form import results_of


def times_of(compute: Callable[..., Any], arguments: Sequence[Any], repeats: int = 50) -> list[float]:
    """Seconds of forward and backward passes on a GPU, each with a cold cache, ascending."""
    tensors = [each for each in arguments if isinstance(each, Tensor)]
    cache = torch.empty(512 * 2**20, dtype=torch.uint8, device=tensors[0].device)
    inputs = [each for each in tensors if each.requires_grad]
    gradients = [torch.ones_like(each) for each in results_of(compute(*arguments))]
    seconds = []
    for _ in range(repeats + 10):
        for _ in range(4):  # longer than the host takes to start the kernels, which shall not wait for it
            cache.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        results = results_of(compute(*arguments))
        if inputs:
            torch.autograd.grad(results, inputs, gradients)
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return sorted(seconds[10:])
