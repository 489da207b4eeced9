"""The parts of a planned model, loaded and ready to be put together: as one module, or as the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve, field, frozen
from neox_plain.api import spread

from neox_core.errors import ConfigError
from neox_core.parallel.row import Recompute
from neox_core.parallel.tensor import ALONE
from neox_gpt.attention.layout_tables import build_tables
from neox_gpt.block import Block
from neox_gpt.change_flops import flops_of_changes
from neox_gpt.changes import Changes
from neox_gpt.check_parts import build_activation, probe_feed_forwards, probe_mixers, probe_parts
from neox_gpt.compiled_loss import CompiledLoss
from neox_gpt.contracts import PositionShape
from neox_gpt.documents import DocumentRules
from neox_gpt.exchange import on_one_host
from neox_gpt.joined import joins, within
from neox_gpt.recompute import recompute_by_torch, recompute_parted
from neox_gpt.shape import ModelShape, build_shape

if TYPE_CHECKING:
    from torch import Tensor, nn

    from neox_core.parallel.context import BuildContext
    from neox_core.parallel.tensor import TensorParallel
    from neox_core.plan.runfile import RecomputePlan
    from neox_gpt.attention.sparse import BlockTable
    from neox_gpt.config.plan import GPTPlan
    from neox_gpt.contracts import FeedForward, Mixer


@frozen(eq=False)
class Parts:
    """What `model.gpt.GPT` is made of, by the names it has there."""

    shape: ModelShape
    norm: Callable[[], nn.Module]
    mixer: Callable[[int], Mixer]
    feed_forward: Callable[[int], FeedForward]
    joined: Callable[[int], bool]
    position: nn.Module
    tensor: TensorParallel
    narrow_loss: bool
    documents: DocumentRules | None
    recompute: Recompute | None
    changes: Changes
    tables: Mapping[int, BlockTable] = field(factory=dict)
    compiled_loss: CompiledLoss | None = None
    sparse_gradients: bool = False

    def block(self, index: int) -> Block:
        """A block that owns weights, with the model changes in it."""
        sublayers = partial(self.mixer, index), partial(self.feed_forward, index)
        made = Block(self.shape, self.norm, *sublayers, self.tensor, index, joined=self.joined(index))
        return self.changes.attach(made, f"layers.{index}")


def load_parts(
    plan: GPTPlan,
    vocab_size: int,
    context: BuildContext,
    eod: int | None,
    recompute_by: Callable[..., Tensor] | None = None,
    backend: str = "inductor",
) -> Parts:
    """recompute_by: in place of torch's function. backend: of torch.compile, where the plan asks for it.

    Raises PluginError for a component that cannot be loaded or breaks its contract, ConfigError for numbers that
    make no model.
    """
    activation = build_activation(plan.activation)
    probe_parts(plan, activation, _position_shape(plan), context)
    shape = build_shape(plan, vocab_size, gated=activation.gated)
    flops, auxiliary = probe_feed_forwards(plan, activation, shape)
    shape = evolve(shape, feed_forward_flops=flops, auxiliary=auxiliary)
    changes = Changes(plan, context.groups)
    mixer_flops = probe_mixers(plan, shape, _position_shape(plan))
    shape = evolve(shape, mixer_flops=mixer_flops, changes_draw=changes.draws)
    tensor = on_one_host(context.groups.tensor, context.device)
    spread_over = cache(partial(spread, context.groups))
    joined = partial(joins, plan, shape, tensor=tensor, sharded=context.host_first)

    def tensor_of(block: int) -> TensorParallel:
        return within(tensor) if joined(block) else tensor

    def mixer(block: int) -> Mixer:
        made: Mixer = plan.mixer(block).make(shape.mixer(block), tensor_of(block))
        return made

    def feed_forward(block: int) -> FeedForward:
        given = evolve(shape.feed_forward(block), spread=spread_over)
        made: FeedForward = plan.feed_forward(block).make(given, activation, tensor_of(block))
        return made

    def whole_block(index: int) -> Block:
        with torch.device("meta"):
            mixed = partial(plan.mixer(index).make, shape.mixer(index), ALONE)
            fed = partial(plan.feed_forward(index).make, shape.feed_forward(index), activation, ALONE)
            return Changes(plan).attach(Block(shape, norm, mixed, fed), f"layers.{index}")

    norm, position = partial(plan.norm.make, shape.hidden_size), load_position(plan)
    shape = evolve(shape, change_flops=flops_of_changes(shape, changes, whole_block))
    return Parts(
        shape=shape,
        norm=norm,
        mixer=mixer,
        feed_forward=feed_forward,
        joined=joined,
        position=position,
        tensor=tensor,
        narrow_loss=context.narrow_loss,
        documents=_document_rules(plan, eod),
        recompute=None if plan.recompute is None else _recompute(plan.recompute, tensor, recompute_by),
        changes=changes,
        tables=build_tables(plan, context),
        compiled_loss=_compiled_loss(plan, context, backend),
        sparse_gradients=plan.sparse_gradients,
    )


def load_position(plan: GPTPlan) -> Any:
    """A module that keeps `contracts.Position`, its weights still to be drawn."""
    return plan.position.make(_position_shape(plan))


def _position_shape(plan: GPTPlan) -> PositionShape:
    heads = plan.num_attention_heads
    return PositionShape(plan.hidden_size, heads, plan.head_width, plan.max_position_embeddings)


def _recompute(plan: RecomputePlan, tensor: TensorParallel, by: Callable[..., Tensor] | None) -> Recompute:
    return Recompute(plan.layers, by or (recompute_parted(tensor) if plan.distribute else recompute_by_torch))


def _compiled_loss(plan: GPTPlan, context: BuildContext, backend: str) -> CompiledLoss | None:
    if not plan.compile or context.groups.tensor.size > 1:
        return None
    return CompiledLoss(backend, on=plan.compile is True)


def _document_rules(plan: GPTPlan, eod: int | None) -> DocumentRules | None:
    if not (plan.reset_position_ids or plan.reset_attention_mask or plan.eod_mask_loss):
        return None
    if eod is None:
        raise ConfigError("without a tokenizer the end of a document is not known", hint="set tokenizer-type")
    return DocumentRules(eod, plan.reset_position_ids, plan.reset_attention_mask, plan.eod_mask_loss)
