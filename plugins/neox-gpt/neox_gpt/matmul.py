"""Matrix products in fp32 on a CPU, by the faster of the two libraries that torch carries.

torch sends fp32 products to MKL, which leaves AVX-512 unused on processors that are not Intel's: 100 GFLOP/s a core
where oneDNN reaches 200 (Zen 5, torch 2.13). Both are strict fp32. Every other dtype and device goes where torch sends
it. `_linear_pointwise` is the operator that torch.compile emits for a linear layer on a CPU whose weight is a constant;
where a build of torch lacks it, MKL it is. In training torch.compile goes by MKL as well, so a compiled layer is told
of three products as operators of their own, which it calls as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Product = Callable[[Tensor, Tensor], Tensor]
_POINTWISE = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`, differentiable and under autocast's rule.

    x: [..., inputs]. weight: [outputs, inputs]. bias: [outputs]. Returns [..., outputs].
    """
    if _by_onednn(x, weight) and not torch.is_autocast_enabled("cpu"):
        if torch.compiler.is_compiling():
            compiled: Tensor = _compiled_linear(x, weight, bias)
            return compiled
        if torch.is_grad_enabled():
            result: Tensor = _Linear.apply(x, weight, bias)
            return result
        return times_transposed(x, weight, bias)
    return F.linear(x, weight, bias)


def times_transposed(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` outside autograd and autocast. Either operand may be a transposed view."""
    if _POINTWISE is not None and _by_onednn(x, weight):
        result: Tensor = _POINTWISE(x, weight, bias, "none", [], "")
        return result
    return F.linear(x, weight, bias)


def gradient_product(x: Tensor, weight: Tensor) -> Tensor:
    """`times_transposed` of a gradient that is taken in a forward pass.

    A profile of that pass counts what goes by `torch.nn.functional`, which a product of the backward pass does not.
    """
    if _by_onednn(x, weight):
        return times_transposed(x, weight)
    result: Tensor = torch.ops.aten.linear(x, weight)
    return result


def _by_onednn(x: Tensor, weight: Tensor) -> bool:
    return (
        _POINTWISE is not None
        and bool(torch.backends.mkldnn.enabled)
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
    )


def _grad_input(grad: Tensor, weight: Tensor) -> Tensor:
    return times_transposed(grad, weight.T)


def _grad_weight(rows: Tensor, x: Tensor) -> Tensor:
    return times_transposed(rows.T, x.T)


def _grads(ctx: Any, grad: Tensor, of_input: Product, of_weight: Product) -> tuple[Tensor | None, ...]:
    """Of x, weight and bias. grad: [..., outputs]. The products are the two above or their operators."""
    x, weight = ctx.saved_tensors
    need_x, need_weight, need_bias = ctx.needs_input_grad
    outputs, inputs = weight.shape
    rows = grad.reshape(-1, outputs)
    return (
        of_input(grad, weight) if need_x else None,
        of_weight(rows, x.reshape(-1, inputs)) if need_weight else None,
        rows.sum(0) if need_bias else None,
    )


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return times_transposed(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _grads(ctx, grad, _grad_input, _grad_weight)


@torch.library.custom_op("neox::linear", mutates_args=(), device_types="cpu")
def _compiled_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return times_transposed(x, weight, bias)


_GRAD_INPUT = torch.library.custom_op("neox::linear_grad_input", _grad_input, mutates_args=(), device_types="cpu")
_GRAD_WEIGHT = torch.library.custom_op("neox::linear_grad_weight", _grad_weight, mutates_args=(), device_types="cpu")


@_compiled_linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@_GRAD_INPUT.register_fake
def _(grad: Tensor, weight: Tensor) -> Tensor:
    return grad.new_empty((*grad.shape[:-1], weight.shape[1]))


@_GRAD_WEIGHT.register_fake
def _(rows: Tensor, x: Tensor) -> Tensor:
    return rows.new_empty((rows.shape[1], x.shape[1]))


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _grads(ctx, grad, _GRAD_INPUT, _GRAD_WEIGHT)


_compiled_linear.register_autograd(_backward, setup_context=_keep)
