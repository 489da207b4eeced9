"""Cross-entropy over a large vocabulary, a chunk of tokens at a time.

Each chunk's logits become their gradient in place, by one kernel that reads them twice and writes them once. The logits
of a batch are never held. The gradient of the matrix is kept in fp32; each chunk's share is added to it by the product
itself, which reads and writes it once more, so chunks are large.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from neox_triton.choices import CHUNK_BYTES, CROSS_ENTROPY
from neox_triton.examples import Size, draw
from neox_triton.kernel import TritonKernel
from neox_triton.launch import block_of, launch

if TYPE_CHECKING:
    from neox_core.parallel.tensor import TensorParallel

IGNORED = -100


@triton.jit
def _loss(
    logits_ptr, labels_ptr, losses_ptr, vocab, IGNORED: tl.constexpr, GRADIENT: tl.constexpr, BLOCK: tl.constexpr
):
    """Of a row the loss; the gradient of the loss takes the place of the logits.

    A label outside of the vocabulary makes the loss nan, which ends the run.
    """
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * vocab
    label = tl.load(labels_ptr + row)
    counted = label != IGNORED
    known = (label >= 0) & (label < vocab)
    own = tl.load(logits_ptr + tl.where(known, label, 0)).to(tl.float32)
    own = tl.where(known, own, float("nan"))
    highest = -float("inf")
    total = 0.0
    for start in range(0, vocab, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + column, mask=column < vocab, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(x, 0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(x - higher), 0)
        highest = higher
    tl.store(losses_ptr + row, tl.where(counted, highest - own + tl.log(total), 0.0).to(losses_ptr.dtype.element_ty))
    if GRADIENT:
        for start in range(0, vocab, BLOCK):
            column = start + tl.arange(0, BLOCK)
            x = tl.load(logits_ptr + column, mask=column < vocab, other=-float("inf")).to(tl.float32)
            grad = tl.exp(x - highest) / total - tl.where(column == label, 1.0, 0.0)
            grad = tl.where(counted, grad, 0.0)
            tl.store(logits_ptr + column, grad.to(logits_ptr.dtype.element_ty), mask=column < vocab)


class _CrossEntropy(torch.autograd.Function):
    """The gradient is that of the sum, taken in `forward`; `backward` divides by the number of labels."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        dtype: torch.dtype,
        chunk: int,
        narrow: bool,
        gradient: bool,
    ) -> Tensor:
        states, matrix = hidden.to(dtype), weight.to(dtype)
        losses = torch.empty(labels.shape, dtype=dtype if narrow else torch.float32, device=labels.device)
        grad_hidden = torch.empty_like(states) if gradient else None
        trained = gradient and ctx.needs_input_grad[1]
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if trained else None
        vocab, tile = weight.shape[0], CROSS_ENTROPY.of(states)
        for start in range(0, len(labels), chunk):
            part = slice(start, start + chunk)
            logits = states[part] @ matrix.T  # [chunk, vocab]
            launch(
                _loss,
                (logits.shape[0],),
                logits,
                labels[part],
                losses[part],
                vocab,
                IGNORED=IGNORED,
                GRADIENT=gradient,
                BLOCK=min(tile.block, block_of(vocab)),
                warps=tile.warps,
                stages=tile.stages,
                passes={0: 3 if gradient else 1},
            )
            if grad_hidden is not None:
                torch.mm(logits, matrix, out=grad_hidden[part])
            if grad_weight is not None:
                _accumulate(grad_weight, logits, states[part])
        count = (labels != IGNORED).sum().clamp(min=1)
        ctx.save_for_backward(grad_hidden, grad_weight, count)
        ctx.dtypes = hidden.dtype, weight.dtype
        return losses.sum(dtype=torch.float32) / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, count = ctx.saved_tensors
        hidden_dtype, weight_dtype = ctx.dtypes
        scale = grad_loss / count
        return (
            (grad_hidden * scale).to(hidden_dtype),
            None if grad_weight is None else (grad_weight * scale).to(weight_dtype),
            None,
            None,
            None,
            None,
            None,
        )


def _accumulate(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left.T @ right to `total` of fp32, with no rounding of the product in between."""
    if left.dtype == total.dtype:
        total.addmm_(left.T, right)
    elif total.device.type == "cuda":
        torch.addmm(total, left.T, right, out_dtype=total.dtype, out=total)
    else:  # torch has the mixed product on GPUs alone
        total.addmm_(left.T.float(), right.float())


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    chunk: int | None = None,
    *,
    narrow: bool = False,
    tensor: TensorParallel | None = None,
) -> Tensor:
    """The op, as `neox_gpt.loss.cross_entropy`, for a vocabulary that one rank has whole."""
    if tensor is not None and tensor.size > 1:
        raise ValueError("the vocabulary is shared by ranks")
    device = hidden.device.type
    autocast = device != "meta" and torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else hidden.dtype
    if chunk is None:
        chunk = max(1, CHUNK_BYTES // (dtype.itemsize * weight.shape[0]))
    gradient = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    with torch.autocast("cpu" if device == "meta" else device, enabled=False):
        return _CrossEntropy.apply(
            hidden.flatten(0, -2), weight, labels.flatten().contiguous(), dtype, chunk, narrow, gradient
        )


def _cases(dtype: torch.dtype, device: torch.device, size: Size | None) -> Iterator[tuple[Any, ...]]:
    tokens, width, vocab = (size.batch * size.seq, size.width, size.vocab) if size else (10, 12, 123)
    hidden = draw(tokens, width, dtype=dtype, device=device)
    weight = draw(vocab, width, dtype=dtype, device=device, scale=width**-0.5 * 4)
    labels = torch.arange(tokens, device=device) * 7919 % vocab
    yield hidden, weight, labels.masked_fill(labels % 5 == 1, IGNORED), None if size else 4


KERNEL = TritonKernel(cross_entropy, _cases, tiling=CROSS_ENTROPY)
