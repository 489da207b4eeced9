"""Cross-entropy over a large vocabulary, a few tokens at a time.

The logits of a batch are the largest tensor of a small model. Here they exist for one chunk of tokens, and each chunk's
gradient is taken while they are there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

IGNORED = -100
CHUNK_BYTES = 64 * 2**20


def cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int | None = None) -> Tensor:
    """Mean of -log softmax(hidden @ weight.T)[label] in nats over the labels that are not -100; an fp32 scalar.

    hidden: [..., hidden]. weight: [vocab, hidden]. labels: int64, the leading shape of hidden. Under autocast the
    products are in its dtype. No label that counts: 0. chunk: tokens whose logits exist at once; None: 64 MiB of them.
    """
    hidden = hidden.flatten(0, -2)  # [tokens, hidden]
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    if chunk is None:
        chunk = max(1, CHUNK_BYTES // (weight.shape[0] * hidden.element_size()))
    with_gradient = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    loss: Tensor = _ChunkedCrossEntropy.apply(hidden, weight, labels.flatten(), chunk, with_gradient)  # type: ignore[no-untyped-call]
    return loss


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Sum over chunks of [chunk, vocab] logits; the gradient is divided by the number of labels in `backward`, where a
    loss scale comes in too, so that half precision does not lose it."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int, with_gradient: bool) -> Tensor:
        counted = labels != IGNORED
        count = counted.sum().clamp(min=1)
        total = torch.zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device)
        grad_hidden = torch.empty_like(hidden) if with_gradient else None
        grad_weight = torch.zeros_like(weight, dtype=total.dtype) if with_gradient else None
        for start in range(0, hidden.shape[0], chunk):
            part = slice(start, start + chunk)
            states, keep = hidden[part], counted[part, None]
            target = labels[part].clamp(min=0)[:, None]
            logits = F.linear(states, weight)  # [chunk, vocab]
            log_probs = torch.log_softmax(logits, -1, dtype=total.dtype)
            total -= (log_probs.gather(1, target) * keep).sum()
            if grad_hidden is None or grad_weight is None:
                continue
            grad = log_probs.exp_().mul_(keep)  # d total / d logits
            grad.scatter_add_(1, target, -keep.to(grad.dtype))
            grad = grad.to(hidden.dtype)
            torch.mm(grad, weight, out=grad_hidden[part])
            if grad_weight.dtype == grad.dtype:
                grad_weight.addmm_(grad.T, states)
            else:
                grad_weight += grad.T @ states
        ctx.save_for_backward(grad_hidden, grad_weight, count)
        return total / count

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        grad_hidden, grad_weight, count = ctx.saved_tensors
        scale = grad_loss / count
        return grad_hidden * scale, (grad_weight * scale).to(grad_hidden.dtype), None, None, None
