"""From a planned model to one with weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch

from neox_core.contracts.model import PositionShape
from neox_core.errors import CheckpointError, ConfigError
from neox_core.model.documents import DocumentRules
from neox_core.model.gpt import GPT
from neox_core.model.init import init_parameters
from neox_core.model.recompute import Recompute
from neox_core.model.shape import build_shape
from neox_core.parallel.tensor import mark_parameters

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.build.context import BuildContext
    from neox_core.plan.runfile import ModelPlan


def build_model(
    plan: ModelPlan,
    vocab_size: int,
    context: BuildContext,
    weights: Mapping[str, Tensor] | None = None,
    *,
    eod: int | None = None,
) -> GPT:
    """The model on `context.device` in `context.dtype`, its weights drawn from (context.seed, parameter name).

    vocab_size: rows of the embedding, see `model.shape.padded_vocab`. The weights are drawn in fp32 on the CPU and
    then moved, so every device and dtype starts from the same numbers. weights: by parameter name, instead of drawn
    ones. eod: the token that ends a document; a plan that parts documents needs it. Raises PluginError for a component
    that cannot be loaded, ConfigError for numbers that make no model, CheckpointError for weights of another model.
    """
    make_norm, norm_settings = plan.norm.load()
    make_activation, activation_settings = plan.activation.load()
    make_position, position_settings = plan.position.load()
    activation = make_activation(activation_settings)
    shape = build_shape(plan, vocab_size, gated=activation.gated)
    position = make_position(
        PositionShape(
            hidden_size=shape.hidden_size,
            num_heads=shape.num_heads,
            head_dim=shape.head_dim,
            max_positions=shape.max_positions,
        ),
        position_settings,
    )
    make_norm = partial(make_norm, shape.hidden_size, norm_settings)
    model = GPT(
        shape,
        make_norm,
        activation,
        position,
        context.groups.tensor,
        narrow_loss=context.narrow_loss,
        documents=_document_rules(plan, eod),
        recompute=None if plan.recompute is None else Recompute(plan.recompute.layers),
    )
    if weights is None:
        init_parameters(model, shape, context.seed, plan.init_method, plan.output_init_method, plan.init_std)
    else:
        _fill(model, weights)
    model.to(device=context.device, dtype=context.dtype)
    mark_parameters(model, context.groups.tensor)
    return model


def _document_rules(plan: ModelPlan, eod: int | None) -> DocumentRules | None:
    if not (plan.reset_position_ids or plan.reset_attention_mask or plan.eod_mask_loss):
        return None
    if eod is None:
        raise ConfigError("without a tokenizer the end of a document is not known", hint="set tokenizer-type")
    return DocumentRules(eod, plan.reset_position_ids, plan.reset_attention_mask, plan.eod_mask_loss)


def _fill(model: GPT, weights: Mapping[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    wanted = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    given = {name: tuple(weight.shape) for name, weight in weights.items()}
    if wanted != given:
        name = min(dict(wanted.items() ^ given.items()))
        raise CheckpointError(f"weights of another model: {name} is {given.get(name)} and should be {wanted.get(name)}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
