"""The functions of `native` as operators of torch: a compiler of layers takes them as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from neox_gpt.attention import native
from neox_gpt.attention.native import Three

computes = torch.compiler.assume_constant_result(native.computes)


@torch.library.custom_op("neox_gpt::causal_attention", mutates_args=())
def forward(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """See `native.forward`."""
    return native.forward(query, key, value, scale)


@torch.library.custom_op("neox_gpt::causal_attention_backward", mutates_args=())
def backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, tops: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """See `native.backward`."""
    return native.backward(grad, query, key, value, out, tops, scale)


@forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return native.results(query)


@backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, tops: Tensor, scale: float) -> Three:
    return native.gradients(query, key, value)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
    return *backward(grad, *ctx.saved_tensors, ctx.scale), None


torch.library.register_autograd("neox_gpt::causal_attention", _differentiate, setup_context=_save)
