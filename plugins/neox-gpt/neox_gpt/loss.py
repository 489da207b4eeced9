"""Cross-entropy over a large vocabulary, a few tokens at a time.

The logits of a batch are the largest tensor of a small model. Here they exist for one chunk of tokens, and the chunk's
gradient is taken while they are there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from neox_core.parallel.tensor import ALONE, TensorParallel
from neox_gpt.matmul import gradient_product, times_transposed
from neox_gpt.native_loss import native_chunks

IGNORED = -100
CHUNK_BYTES = {"cpu": 24 * 2**20}  # a processor's last cache; the logits are read and written four times
GPU_CHUNK_BYTES = 256 * 2**20

LossAndGradient = Callable[[Tensor, Tensor, torch.dtype], tuple[Tensor, Tensor]]
"""`loss_and_gradient`, or what a compiler has made of it."""


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    chunk: int | None = None,
    *,
    narrow: bool = False,
    tensor: TensorParallel = ALONE,
    compiled: LossAndGradient | None = None,
    bias: Tensor | None = None,
    cap: float | None = None,
    by_torch: bool = False,
) -> Tensor:
    """Mean of -log softmax(hidden @ weight.T)[label] in nats over the labels that are not -100.

    hidden: [..., hidden]. weight: [vocab, hidden]. labels: int64, the leading shape of hidden. Under autocast the
    products are in its dtype, but the softmax is in fp32. Returns a scalar of fp32 or wider; 0 when no
    label counts, nan where one is outside of the vocabulary.
    chunk: tokens whose logits exist at once; None: what CHUNK_BYTES of fp32 hold. narrow: each token's loss in the
    dtype of the products, with its few digits, instead of fp32; their sum is always in fp32.
    tensor: the ranks that share the vocabulary, each with its rows of `weight`. Each returns the loss, and the part of
    the gradient of `hidden` that goes through its rows: `TensorParallel.enter` adds them up.
    compiled: `loss_and_gradient` by a compiler, for one rank. bias, cap: see `finished`. by_torch: not by the compiled
    code of `native_loss`, which computes the chunks on a CPU where it can.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    if chunk is None:
        chunk = max(1, CHUNK_BYTES.get(device, GPU_CHUNK_BYTES) // (4 * weight.shape[0]))
    with_gradient = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    with torch.autocast(device, enabled=False):
        loss: Tensor = _ChunkedCrossEntropy.apply(
            hidden.flatten(0, -2),
            weight,
            labels.flatten(),
            dtype,
            chunk,
            narrow,
            with_gradient,
            tensor,
            compiled if bias is None and cap is None else None,
            bias,
            cap,
            by_torch,
        )
    return loss


by_torch = partial(cross_entropy, by_torch=True)
"""`cross_entropy` in operations of torch alone: the reference."""


def finished(product: Tensor, bias: Tensor | None, cap: float | None) -> Tensor:
    """Logits [..., vocab] from the product with the output's weight: with a bias [vocab], then `cap tanh(logit / cap)`.

    A tensor-parallel rank has its rows of them.
    """
    logits = product if bias is None else product + bias.to(product.dtype)
    return logits if cap is None else cap * (logits.to(torch.promote_types(logits.dtype, torch.float32)) / cap).tanh()


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The gradient is that of the sum, taken in `forward`; `backward` divides by the number of labels.

    A loss scale comes in at the same place, so what half precision holds in between is of the size of a probability,
    not of one divided by the tokens of a batch.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # [tokens, hidden]
        weight: Tensor,  # [vocab, hidden]
        labels: Tensor,  # [tokens]
        dtype: torch.dtype,
        chunk: int,
        narrow: bool,
        with_gradient: bool,
        tensor: TensorParallel,
        compiled: LossAndGradient | None,
        bias: Tensor | None,  # [vocab]
        cap: float | None,
        by_torch: bool,
    ) -> Tensor:
        wide = torch.promote_types(dtype, torch.float32)
        inner = dtype if narrow else wide
        states, matrix = hidden.to(dtype), weight.to(dtype)
        counted = labels != IGNORED
        targets = labels.clamp(min=0) - tensor.rank * weight.shape[0]
        here = (targets >= 0) & (targets < weight.shape[0])  # of the targets, those among this rank's rows
        targets = targets.clamp(0, weight.shape[0] - 1)
        losses = torch.empty(labels.shape, dtype=inner, device=labels.device)
        native = None if by_torch or bias is not None or cap is not None else native_chunks(states, matrix)
        chunk = chunk if native is None else native.size(chunk)
        grad_hidden = torch.empty_like(states, dtype=dtype if native is None else wide) if with_gradient else None
        trained = with_gradient and ctx.needs_input_grad[1]
        turned = weight.shape if native is not None else weight.shape[::-1]
        grad_weight = torch.zeros(turned, dtype=wide, device=weight.device) if trained else None
        grad_bias = torch.zeros_like(bias, dtype=wide) if with_gradient and bias is not None else None
        for part in (slice(start, start + chunk) for start in range(0, len(labels), chunk)):
            if native is not None:
                own = targets[part].where(here[part], -1)
                losses[part] = native.losses(part, own, counted[part], tensor, grad_hidden, grad_weight)
                continue
            target = targets[part, None]
            logits = finished(times_transposed(states[part], matrix), bias, cap)  # [chunk, vocab]
            if compiled is not None and with_gradient and tensor.size == 1:
                torch._dynamo.maybe_mark_dynamic(logits, 0)  # noqa: SLF001  the last chunk is shorter
                losses[part], grad = compiled(logits, target, inner)
            else:
                losses[part], probs = _softmax_loss(logits, target, here[part], inner, tensor)
                if not with_gradient:
                    continue
                grad = probs.scatter_add_(1, target, -here[part, None].to(inner))  # d loss / d logits
                grad = (grad if cap is None else grad * (1 - (logits / cap).square())).to(dtype)
            if grad_hidden is None:
                continue
            kept = counted[part, None]
            grad_hidden[part] = gradient_product(grad, matrix.T) * kept
            if grad_weight is not None:
                grad_weight += gradient_product((states[part] * kept).T, grad.T)
            if grad_bias is not None:
                grad_bias += (grad * kept).sum(0, dtype=wide)
        count = counted.sum().clamp(min=1)
        if native is not None and grad_weight is not None:
            grad_weight = grad_weight.T
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias, count)
        ctx.dtypes = hidden.dtype, weight.dtype
        unknown = counted & ((labels < 0) | (labels >= weight.shape[0] * tensor.size))
        return losses.masked_fill_(~counted, 0.0).masked_fill_(unknown, torch.nan).sum(dtype=wide) / count

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, grad_bias, count = ctx.saved_tensors
        hidden_dtype, weight_dtype = ctx.dtypes
        scale = grad_loss / count
        of_weight = None
        if grad_weight is not None:  # of a graph that ends here it is scaled where it is, or there would be two of it
            again = torch._C._autograd._get_current_graph_task_keep_graph()  # noqa: SLF001
            of_weight = (grad_weight * scale if again else grad_weight.mul_(scale)).T.contiguous().to(weight_dtype)
        of_bias = None if grad_bias is None else (grad_bias * scale).to(weight_dtype)
        return (grad_hidden * scale).to(hidden_dtype), of_weight, *(None,) * 7, of_bias, None, None


def loss_and_gradient(logits: Tensor, target: Tensor, inner: torch.dtype) -> tuple[Tensor, Tensor]:
    """Losses of `inner` [chunk] and their gradient in the dtype of the logits [chunk, vocab], by what a compiler fuses.

    target: int64 [chunk, 1].
    """
    wide = logits.to(inner)
    highest = wide.amax(-1, keepdim=True)
    powers = (wide - highest).exp()
    total = powers.sum(-1, keepdim=True)
    own = wide.gather(1, target)
    is_target = torch.arange(logits.shape[1], device=logits.device) == target
    grad = powers / total - is_target.to(inner)
    return (highest - own + total.log())[:, 0], grad.to(logits.dtype)


def _softmax_loss(
    logits: Tensor, target: Tensor, here: Tensor, inner: torch.dtype, tensor: TensorParallel
) -> tuple[Tensor, Tensor]:
    """Losses [chunk] and probabilities [chunk, vocab] of `inner`, in passes of torch's own.

    target: int64 [chunk, 1]. here: bool [chunk], which targets are among this rank's rows.
    """
    highest, own = logits.amax(-1), logits.gather(1, target)[:, 0]
    probs = torch.softmax(logits, -1, dtype=inner)
    top = probs.amax(-1)
    if tensor.size > 1:
        highest, own, top = _across(tensor, highest, own * here, probs, top)
    # The likeliest token's probability cannot underflow as the target's can: the loss goes by way of it.
    return highest.to(inner) - own.to(inner) - top.log(), probs


def _across(
    tensor: TensorParallel, highest: Tensor, own: Tensor, probs: Tensor, top: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """From each rank's softmax over its rows to that over all; `probs` [chunk, its rows] becomes so in place.

    highest, own, top: [chunk], of this rank's logits the largest and the target's, and the largest of `probs`. Returns
    the three of all rows.
    """
    overall = tensor.highest(highest.clone())
    # exp(highest) / top is the sum of this rank's exponentials.
    mine = (highest - overall).to(top.dtype).exp() / top
    total, own = tensor.add_up(torch.stack([mine, own.to(top.dtype)]))
    probs *= (mine / total)[:, None]
    return overall, own, total.reciprocal()
