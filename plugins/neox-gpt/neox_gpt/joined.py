"""The parallel form of a block under tensor parallelism: its two sublayers share what the ranks exchange.

Attention and MLP are both added to the residual stream, so one sum over the ranks is of both; and both start from it,
so their gradients are exchanged together. GPT-NeoX joins the sums of the forward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from attrs import frozen
from torch import Tensor

from neox_core.parallel.tensor import TensorParallel
from neox_gpt.config.plan import REGULAR, SOFTMAX_ATTENTION

if TYPE_CHECKING:
    from neox_gpt.config.plan import GPTPlan
    from neox_gpt.shape import ModelShape


@frozen(eq=False)
class Within(TensorParallel):
    """For the sublayers of a block that itself enters and leaves."""

    def enter(self, x: Tensor) -> Tensor:
        return x

    def leave(self, x: Tensor) -> Tensor:
        return x


def joins(plan: GPTPlan, shape: ModelShape, block: int, tensor: TensorParallel, *, sharded: bool = False) -> bool:
    """Whether a block joins the sums of its sublayers: those of other plugins may give more than parts of a sum, and
    dropout and norms after a sublayer look at the sum of each. sharded: each rank holds a shard of every weight
    (ZeRO 3); DeepSpeed does not gather it for a compiled layer whose product is called without the bias.
    """
    if sharded and plan.compile:
        return False
    own = plan.mixer(block).target == SOFTMAX_ATTENTION.target and plan.feed_forward(block).target == REGULAR.target
    side_by_side = shape.parallel_residual and shape.norm_place == "before" and not shape.hidden_dropout
    return tensor.size > 1 and own and side_by_side


def within(tensor: TensorParallel) -> Within:
    """What the sublayers of a block that joins get in place of `tensor`."""
    return Within(tensor.group, tensor.rank, tensor.size, tensor.sequence_parallel, tensor.exchange)


def enter_both(first: Tensor, second: Tensor, tensor: TensorParallel) -> tuple[Tensor, Tensor]:
    """`tensor.enter` of two tensors [batch, seq, hidden] at once."""
    entered = tensor.enter(torch.cat((first, second)))
    batch = first.shape[0]
    return entered[:batch], entered[batch:]
