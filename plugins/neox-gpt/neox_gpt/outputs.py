"""What a pass over the decoder gives: see `contracts.objective.Outputs`. Its reference is `WholeLogits` of the kit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve, field, frozen
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from neox_core.contracts.objective import IGNORED, Scores
from neox_core.parallel.tensor import ALONE
from neox_gpt.loss import CHUNK_BYTES, GPU_CHUNK_BYTES, cross_entropy, finished
from neox_gpt.matmul import linear

if TYPE_CHECKING:
    from neox_core.parallel.tensor import TensorParallel
    from neox_gpt.auxiliary import Auxiliary


@frozen(eq=False)
class DecoderOutputs:
    """hidden: the normalised states of all positions, [batch, seq, hidden], as `tensor.enter` gives them.

    weight: [vocab, hidden], of a tensor-parallel rank its rows. loss: as `loss.cross_entropy`. total, auxiliary: the
    sum of the vectors of all layers, and what is in it; None: nothing. bias, cap: see `loss.finished`.
    """

    hidden: Tensor
    weight: Tensor
    tensor: TensorParallel = ALONE
    narrow: bool = False
    loss: Callable[..., Tensor] = cross_entropy
    total: Tensor | None = None
    auxiliary: Auxiliary | None = None
    chunk: int | None = field(default=None)
    bias: Tensor | None = None
    cap: float | None = None

    @property
    def auxiliary_losses(self) -> Mapping[str, Tensor]:
        return {} if self.auxiliary is None or self.total is None else self.auxiliary.of_losses(self.total)

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        return {} if self.auxiliary is None or self.total is None else self.auxiliary.of_metrics(self.total)

    def cross_entropy(self, labels: Tensor) -> Tensor:
        more = {} if self.bias is None and self.cap is None else {"bias": self.bias, "cap": self.cap}
        return self.loss(self.hidden, self.weight, labels, narrow=self.narrow, tensor=self.tensor, **more)

    def scores(self, labels: Tensor) -> Scores:
        """A few tokens at a time, whose logits are computed again in the backward pass."""
        states, flat = self.hidden.flatten(0, 1), labels.flatten()
        limit = CHUNK_BYTES.get(states.device.type, GPU_CHUNK_BYTES)
        chunk = self.chunk or max(1, limit // (4 * self.weight.shape[0]))
        parts = [self._part(states[at : at + chunk], flat[at : at + chunk]) for at in range(0, len(flat), chunk)]
        return Scores(*(torch.cat(each).view(labels.shape) for each in zip(*parts, strict=True)))

    def logits(self) -> Tensor:
        return self.tensor.restore(finished(linear(self.hidden, self.weight), self.bias, self.cap))

    def _part(self, states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        given = states, self.weight, labels, self.tensor, self.bias, self.cap
        if not torch.is_grad_enabled():
            return _scores(*given)
        again: Any = checkpoint(_scores, *given, use_reentrant=False, preserve_rng_state=False)
        found: tuple[Tensor, Tensor, Tensor] = again
        return found


def _scores(
    states: Tensor, weight: Tensor, labels: Tensor, tensor: TensorParallel, bias: Tensor | None, cap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """log_prob, mean_log_prob and log_sum of `Scores`, [tokens] each. states: [tokens, hidden]; labels: [tokens]."""
    product = finished(linear(states, weight), bias, cap)
    logits = product.to(torch.promote_types(product.dtype, torch.float32))  # [tokens, vocab of this rank]
    rows = logits.shape[1]
    targets = labels - tensor.rank * rows
    here = (targets >= 0) & (targets < rows)
    own = logits.gather(1, targets.clamp(0, rows - 1)[:, None])[:, 0] * here
    mean = logits.sum(1) / (rows * tensor.size)
    log_sum = logits.logsumexp(1)
    if tensor.size > 1:
        whole = evolve(tensor, sequence_parallel=False)  # the states are those of all positions
        highest = tensor.highest(log_sum.detach().clone())
        own, mean, powers = whole.leave(torch.stack([own, mean, (log_sum - highest).exp()])).unbind()
        log_sum = highest + powers.log()
    return (own - log_sum).masked_fill(labels == IGNORED, 0.0), mean - log_sum, log_sum
