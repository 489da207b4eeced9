"""The feed-forward `moe`: a router sends each token to a few of several MLPs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import torch
from neox_gpt.api import MLP, linear
from neox_plain.api import Spread
from torch import Tensor, nn

from neox_moe.dispatch import dispatch, fetch, send
from neox_moe.exchange import at_experts
from neox_moe.grouped import grouped_linear
from neox_moe.routing import Choice, choose, load_balance, z_loss

if TYPE_CHECKING:
    from neox_gpt.api import Activation, FeedForwardShape

    from neox_core.parallel.tensor import Cut, TensorParallel
    from neox_moe.settings import MoESettings


def mixture(
    shape: FeedForwardShape, activation: Activation, tensor: TensorParallel, settings: MoESettings
) -> MixtureOfExperts | MLP:
    """The mixture, or with one expert the MLP, as in GPT-NeoX."""
    if settings.moe_num_experts == 1:
        return MLP(shape, activation, tensor)
    return MixtureOfExperts(shape, activation, tensor, settings)


class MixtureOfExperts(nn.Module):
    """[batch, seq, hidden] -> [batch, seq, hidden]: the weighted sum of what a token's experts make of it.

    Tensor-parallel ranks have a part of each expert's width, so all of them have equal work. Data-parallel ranks have
    some of the experts each, where the settings say so. The router is in fp32.
    """

    def __init__(
        self, shape: FeedForwardShape, activation: Activation, tensor: TensorParallel, settings: MoESettings
    ) -> None:
        super().__init__()
        hidden, width, experts = shape.hidden_size, shape.intermediate_size, settings.moe_num_experts
        self.activation, self.tensor, self.settings = activation, tensor, settings
        halves = (2,) if shape.gated else ()  # value and gate
        inner, mine = (2 * width if shape.gated else width), tensor.share(width)
        self.router = Router(hidden, experts)
        ranks = settings.moe_expert_parallel_size
        self.spread = shape.spread(ranks) if shape.spread is not None and ranks > 1 else Spread()
        here = experts // self.spread.size
        self.up = Matrices((here, *halves, mine, hidden), tensor.cut(1 + len(halves), (width,)), self.spread)
        self.down = Matrices((here, hidden, mine), tensor.cut(2, (width,)), self.spread)
        self.down.residual_output = True
        self.sinkhorn = settings.moe_router_type == "sinkhorn"
        self.depends_on_batch = self.sinkhorn or settings.moe_train_capacity_factor is not None
        losses = {"load_balance": settings.balance, "router_z": settings.moe_z_loss_coeff}
        self.coefficients = {name: coefficient for name, coefficient in losses.items() if coefficient}
        self.auxiliary_losses = tuple(self.coefficients)
        self.auxiliary_metrics = ("busiest_expert", "dropped_tokens")
        self.flops_per_token = 6 * hidden * (experts + settings.moe_top_k * (inner + width))

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        entered = self.tensor.enter(x)  # with sequence parallelism: all positions
        rows = entered.flatten(0, 1)
        logits = self.router(rows, self.tensor)
        k, experts = self.settings.moe_top_k, self.settings.moe_num_experts
        choice = choose(logits, k, sinkhorn=self.sinkhorn, balanced=self.training)
        to = dispatch(choice.experts, experts, self._capacity(len(rows)))
        sent = send(rows, to)
        if to.kept is not None:  # what lies after the last expert's tokens is dropped
            taken = torch.arange(len(sent), device=sent.device)[:, None] < to.ends[-1]
            sent = torch.where(taken, sent, 0)
        spread = self.spread.size > 1
        made = at_experts(sent, to.ends, self.spread, self._mlps) if spread else self._mlps(sent, to.ends)
        made = fetch(made, to).unflatten(0, (-1, k))
        weights = self._weights(choice, to.kept)
        routed = (made * weights[..., None].to(made.dtype)).sum(1)
        result = self.tensor.leave(routed.view_as(entered).to(x.dtype))
        return result, self._numbers(logits, choice.experts, to.counts, to.kept)

    def _mlps(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Rows sorted by the experts of this rank -> what these make of them."""
        return self.down(self.activation(self.up(rows, ends)), ends)

    def _capacity(self, tokens: int) -> int | None:
        """The tokens that an expert takes of `tokens`; None: all that are sent to it."""
        factor = self.settings.moe_train_capacity_factor
        if factor is None or not self.training:
            return None
        return math.ceil(factor * tokens * self.settings.moe_top_k / self.settings.moe_num_experts)

    def _weights(self, choice: Choice, kept: Tensor | None) -> Tensor:
        weights = choice.weights
        if self.settings.moe_normalize_expert_weights:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights if kept is None else torch.where(kept, weights, 0)

    def _numbers(self, logits: Tensor, experts: Tensor, counts: Tensor, kept: Tensor | None) -> dict[str, Tensor]:
        """busiest_expert: its tokens, next to those of an equal share. dropped_tokens: the part of all choices."""
        losses = {"load_balance": lambda: load_balance(logits, experts), "router_z": lambda: z_loss(logits)}
        found = {name: coefficient * losses[name]() for name, coefficient in self.coefficients.items()}
        found["busiest_expert"] = counts.max().to(logits.dtype) * len(counts) / experts.numel()
        found["dropped_tokens"] = logits.new_zeros(()) if kept is None else (~kept).to(logits.dtype).mean()
        return found


class Router(nn.Module):
    """[tokens, hidden] -> logits of the experts in fp32 or wider, [tokens, experts]."""

    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, hidden))

    def forward(self, rows: Tensor, tensor: TensorParallel) -> Tensor:
        wide = torch.promote_types(rows.dtype, torch.float32)
        with torch.autocast(rows.device.type, enabled=False):
            return linear(rows.to(wide), tensor.copy(self.weight).to(wide))


class Matrices(nn.Module):
    """A matrix of each expert: `weight`, [experts, outputs, inputs], or [experts, 2, outputs / 2, inputs]."""

    stacks: ClassVar[frozenset[str]] = frozenset({"weight"})
    residual_output = False

    def __init__(self, shape: tuple[int, ...], cut: Cut, spread: Spread) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))
        self.cuts = {} if cut.size == 1 else {"weight": cut}
        self.spreads: dict[str, Spread] = {}
        if spread.size > 1:
            self.cuts, self.spreads = {"weight": spread.cut(0, shape[0] * spread.size)}, {"weight": spread}

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """[rows, inputs] sorted by expert -> [rows, outputs], see `grouped_linear`."""
        return grouped_linear(rows, self.weight.flatten(1, -2), ends)
