"""The parts of a planned model, loaded and ready to be put together: as one module, or as the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from neox_core.contracts.model import PositionShape
from neox_core.errors import ConfigError
from neox_core.model.check_components import build_activation, probe_parts
from neox_core.model.documents import DocumentRules
from neox_core.model.layout_tables import build_tables
from neox_core.model.recompute import Recompute, recompute_by_torch, recompute_parted
from neox_core.model.shape import ModelShape, build_shape

if TYPE_CHECKING:
    from torch import nn

    from neox_core.contracts.model import Activation
    from neox_core.model.sparse import BlockTable
    from neox_core.parallel.context import BuildContext
    from neox_core.parallel.tensor import TensorParallel
    from neox_core.plan.runfile import ModelPlan, RecomputePlan


@frozen(eq=False)
class Parts:
    """What `model.gpt.GPT` is made of, by the names it has there."""

    shape: ModelShape
    norm: Callable[[], nn.Module]
    activation: Activation
    position: nn.Module
    tensor: TensorParallel
    narrow_loss: bool
    documents: DocumentRules | None
    recompute: Recompute | None
    tables: Mapping[int, BlockTable] = field(factory=dict)


def load_parts(plan: ModelPlan, vocab_size: int, context: BuildContext, eod: int | None) -> Parts:
    """Raises PluginError for a component that cannot be loaded or breaks its contract, ConfigError for numbers that
    make no model.
    """
    activation = build_activation(plan.activation)
    probe_parts(plan, activation, _position_shape(plan), context)
    shape = build_shape(plan, vocab_size, gated=activation.gated)
    return Parts(
        shape=shape,
        norm=partial(plan.norm.make, shape.hidden_size),
        activation=activation,
        position=load_position(plan),
        tensor=context.groups.tensor,
        narrow_loss=context.narrow_loss,
        documents=_document_rules(plan, eod),
        recompute=None if plan.recompute is None else _recompute(plan.recompute, context.groups.tensor),
        tables=build_tables(plan, context),
    )


def load_position(plan: ModelPlan) -> Any:
    """A module that keeps `contracts.Position`, its weights still to be drawn."""
    return plan.position.make(_position_shape(plan))


def _position_shape(plan: ModelPlan) -> PositionShape:
    heads = plan.num_attention_heads
    return PositionShape(plan.hidden_size, heads, plan.hidden_size // heads, plan.max_position_embeddings)


def _recompute(plan: RecomputePlan, tensor: TensorParallel) -> Recompute:
    return Recompute(plan.layers, recompute_parted(tensor) if plan.distribute else recompute_by_torch)


def _document_rules(plan: ModelPlan, eod: int | None) -> DocumentRules | None:
    if not (plan.reset_position_ids or plan.reset_attention_mask or plan.eod_mask_loss):
        return None
    if eod is None:
        raise ConfigError("without a tokenizer the end of a document is not known", hint="set tokenizer-type")
    return DocumentRules(eod, plan.reset_position_ids, plan.reset_attention_mask, plan.eod_mask_loss)
