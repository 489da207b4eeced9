"""A step of Adam (Kingma and Ba 2015, arXiv:1412.6980), with decoupled decay (arXiv:1711.05101) or the older form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.graph import increment_version

from neox_triton.choices import ADAM_STEP
from neox_triton.examples import Size, draw
from neox_triton.kernel import TritonKernel
from neox_triton.launch import launch


@triton.jit
def _step(
    weight_ptr,
    grad_ptr,
    mean_ptr,
    square_ptr,
    size,
    rate,
    root_correction,
    share1,
    share2,
    eps,
    kept,
    decay,
    DECOUPLED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    weight = tl.load(weight_ptr + place, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + place, mask=inside, other=0.0).to(tl.float32)
    if DECOUPLED:
        weight = weight * kept
    else:
        grad += weight * decay
    mean = tl.load(mean_ptr + place, mask=inside, other=0.0).to(tl.float32)
    mean += (grad - mean) * share1
    square = tl.load(square_ptr + place, mask=inside, other=0.0).to(tl.float32)
    square += (grad * grad - square) * share2
    weight -= rate * mean / (tl.sqrt_rn(square) / root_correction + eps)
    tl.store(mean_ptr + place, mean.to(mean_ptr.dtype.element_ty), mask=inside)
    tl.store(square_ptr + place, square.to(square_ptr.dtype.element_ty), mask=inside)
    tl.store(weight_ptr + place, weight.to(weight_ptr.dtype.element_ty), mask=inside)


def adam_step(
    weight: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The op, as `neox_adam.optim.adam_step`, in place. All but grad are contiguous."""
    beta1, beta2 = betas
    tile = ADAM_STEP.of(weight)
    launch(
        _step,
        (triton.cdiv(weight.numel(), tile.block),),
        weight,
        grad.contiguous(),
        mean,
        square,
        weight.numel(),
        float(lr / (1 - beta1**step)),
        float((1 - beta2**step) ** 0.5),
        float(1 - beta1),
        float(1 - beta2),
        float(eps),
        float(1 - lr * weight_decay),
        float(weight_decay),
        DECOUPLED=decoupled,
        BLOCK=tile.block,
        warps=tile.warps,
        stages=tile.stages,
        passes={0: 2, 2: 2, 3: 2},
    )
    increment_version((weight, mean, square))
    return weight, mean, square


def _cases(dtype: torch.dtype, device: torch.device, size: Size | None) -> Iterator[tuple[Any, ...]]:
    shape = (size.width, 4 * size.width) if size else (5, 123)
    for decoupled in (True, False):
        weight, grad, mean = (draw(*shape, dtype=dtype, device=device, scale=s).detach() for s in (1.0, 2.0, 3.0))
        yield weight, grad, mean, mean.square() * 0.5, 3, 1e-2, (0.9, 0.95), 1e-8, 0.1, decoupled


KERNEL = TritonKernel(
    adam_step,
    _cases,
    unasked="it is one launch a parameter, where torch's fused step is one for many",
    tiling=ADAM_STEP,
)
