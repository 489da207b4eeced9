"""Objectives, and a feed-forward with auxiliary losses, for runs of ranks."""

from __future__ import annotations

from typing import Any

import torch
from neox_causal_lm.api import CausalLM
from neox_gpt.api import ColumnLinear, RowLinear
from torch import Tensor, nn
from torch.nn import functional as F

from neox_core.contracts.objective import Batch, Loss, Run
from neox_core.parallel.sample_keys import mix
from neox_core.parallel.tensor import ALONE

SMOOTHING, Z_WEIGHT, UNLIKE_WEIGHT = 0.1, 0.01, 0.3


class Smoothed(CausalLM):
    """Label smoothing and a z-loss; a label counts by what it is."""

    def weights(self, batch: Batch) -> Tensor:
        weights = 0.25 + batch.tokens[:, 1:] % 3
        counts = super().weights(batch)
        return weights if counts is None else weights * counts

    def loss(self, run: Run, batch: Batch) -> Loss:
        weights = self.weights(batch)
        scores = run(self.inputs(batch)).scores(batch.tokens[:, 1:])
        smooth = -(1 - SMOOTHING) * scores.log_prob - SMOOTHING * scores.mean_log_prob
        z = scores.log_sum.square()
        total = weights.sum().clamp(min=1)
        mean_z = (z * weights).sum() / total
        return Loss((smooth * weights).sum() / total + Z_WEIGHT * mean_z, {"z": mean_z.detach()})


class Twice(CausalLM):
    """What the model says of its own tokens is replaced by it, without a gradient; the second pass is trained on that.

    A part of the tokens, which follows from the keys. The distance of the two predictions is in the loss.
    """

    draws = True

    def loss(self, run: Run, batch: Batch) -> Loss:
        tokens, labels, keys = self.inputs(batch), batch.tokens[:, 1:], batch.keys
        assert keys is not None
        with torch.no_grad():
            first = run(tokens).logits().float()
        likely = first.argmax(-1).roll(1, 1)
        drawn = mix(keys[:, None] ^ mix(torch.arange(1, tokens.shape[1] + 1, device=tokens.device)))
        changed = torch.where(drawn % 4 == 0, likely, tokens)
        outputs = run(changed)
        second = outputs.logits().float().log_softmax(-1)
        apart = F.kl_div(second, first.log_softmax(-1), log_target=True, reduction="none").sum(-1).mean()
        return Loss(outputs.cross_entropy(labels) + UNLIKE_WEIGHT * apart, {"apart": apart.detach()})


class Gated(nn.Module):
    """An MLP whose result a router scales, with a z-loss of the router, and the share of what it lets through."""

    auxiliary_losses = ("router_z",)
    auxiliary_metrics = ("passed",)

    def __init__(self, shape: Any, activation: Any, tensor: Any = ALONE, settings: None = None) -> None:
        super().__init__()
        hidden, width = shape.hidden_size, shape.intermediate_size
        self.tensor = tensor
        self.up = ColumnLinear(hidden, width, tensor, bias=False)
        self.down = RowLinear(width, hidden, tensor, bias=False)
        self.router = nn.Parameter(torch.empty(2, hidden))
        self.flops_per_token = 6 * hidden * (2 * width + 2)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        entered = self.tensor.enter(x)
        scores = F.linear(entered, self.tensor.copy(self.router)).float()  # [batch, seq, 2]
        passed = scores.softmax(-1)[..., :1]
        inner = F.gelu(F.linear(entered, self.up.weight)) * passed.to(x.dtype)
        result = self.tensor.leave(F.linear(inner, self.down.weight))
        return result, {"router_z": scores.logsumexp(-1).square().mean(), "passed": passed.mean()}
