"""Attention in causal order on a CPU by compiled code, which holds the scores of 32 queries and 96 keys at a time."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch
from neox_kernels.api import native
from torch import Tensor
from torch.nn import functional as F

from neox_gpt.tiles import KEEPS_NAN, in_memory, leaves_bf16_to_torch, multiplies_pairs

SOURCE = Path(__file__).with_name("attention.cpp")
Three = tuple[Tensor, Tensor, Tensor]


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor | None:
    """Queries [batch, heads, seq, head_dim], keys and values [batch, kv heads, seq, head_dim] -> as the queries.

    A query sees its own key and those before it. None where torch has to compute it: numbers of bf16 that the processor
    does not multiply by AVX-512, or multiplies by whole tiles, and all formats but that and fp32.
    """
    if not in_memory(query, key, value):
        return None
    if torch.is_autocast_enabled("cpu"):  # as torch's own function
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = (each.to(dtype) for each in (query, key, value))
    if not query.numel() or not query.dtype == key.dtype == value.dtype or value.shape != key.shape:
        return None
    if torch.compiler.is_compiling():
        from neox_gpt.attention import operators  # here, since it imports the compiler, a second of a start

        return operators.forward(query, key, value, scale)[0] if operators.computes(query.dtype) else None
    if not computes(query.dtype):
        return None
    if F.scaled_dot_product_attention is not torch._C._nn.scaled_dot_product_attention:  # noqa: SLF001
        _let_deepspeed_count(query, key, value)
    attended: Tensor = _Attention.apply(query, key, value, scale)
    return attended


def computes(dtype: torch.dtype) -> bool:
    """Whether there is code for it on this processor."""
    if not torch.backends.cuda.flash_sdp_enabled():  # by which a caller asks for torch's other forms, on a CPU too
        return False
    narrow = dtype == torch.bfloat16
    if narrow and (leaves_bf16_to_torch() or not multiplies_pairs()):
        return False
    library = native(SOURCE, KEEPS_NAN) if narrow or dtype == torch.float32 else None
    return library is not None and (not narrow or bool(library.attention_of_bf16()))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        out, tops = forward(query, key, value, scale)
        ctx.save_for_backward(query, key, value, out, tops)
        ctx.scale = scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, out, tops = ctx.saved_tensors
        return *backward(grad, query, key, value, out, tops, ctx.scale), None


def forward(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """What is attended; and [2, batch, heads, seq] each query's highest score and 1 over the sum of powers below it."""
    given = [_by_row(each) for each in (query, key, value)]
    out, tops = results(query)
    _run("attention_forward", [*given, out], [*given, out, tops], scale)
    return out, tops


def backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, tops: Tensor, scale: float) -> Three:
    """The gradients of queries, keys and values, from that of `out`."""
    given, grads = [_by_row(each) for each in (query, key, value, out, grad)], gradients(query, key, value)
    _run("attention_backward", [*given, *grads], [*given, tops, *grads], scale)
    return grads


def results(query: Tensor) -> tuple[Tensor, Tensor]:
    """Room for what `forward` returns."""
    return _empty(query), query.new_empty(2, *query.shape[:3], dtype=torch.float32)


def gradients(*of: Tensor) -> Three:
    """Room for what `backward` returns."""
    query, key, value = map(_empty, of)
    return query, key, value


def _empty(like: Tensor) -> Tensor:
    """[batch, heads, seq, head_dim] with the heads of a token side by side, as the products that follow read them."""
    batch, heads, seq, width = like.shape
    return like.new_empty(batch, seq, heads, width).transpose(1, 2)


def _by_row(x: Tensor) -> Tensor:
    return x if x.stride(3) == 1 else x.contiguous()


def _run(name: str, shaped: Sequence[Tensor], given: Sequence[Tensor], scale: float) -> None:
    """A function of the library. shaped: those whose strides it asks for; given: all. Raises MemoryError."""
    query, key = shaped[:2]
    batch, heads, seq, width = query.shape
    strides = [step for each in shaped for step in each.stride()[:3]]
    sizes = (c_int64 * 5)(batch, heads, key.shape[1], seq, width)
    places = [c_void_p(each.data_ptr()) for each in given]
    more = c_float(scale), c_int(torch.get_num_threads()), c_int(query.dtype == torch.bfloat16)
    if getattr(native(SOURCE, KEEPS_NAN), name)(*places, sizes, (c_int64 * len(strides))(*strides), *more):
        raise MemoryError("no memory for the attention of a batch")


def _let_deepspeed_count(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Its profiler replaces torch's function while it counts: called here with tensors without memory."""
    given = (torch.empty_like(each, device="meta") for each in (query, key, value))
    F.scaled_dot_product_attention(*given, is_causal=True, enable_gqa=query.shape[1] != key.shape[1])
