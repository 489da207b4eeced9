"""From a planned model to one with weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from attrs import evolve

from neox_core.errors import CheckpointError
from neox_core.parallel.context import DTYPES, BuildContext
from neox_core.parallel.groups import Groups
from neox_core.parallel.tensor import mark_parameters
from neox_gpt.block import Block, compile_layers
from neox_gpt.config.plan import gpt_plan_in
from neox_gpt.init import init_parameters
from neox_gpt.model_inputs import Parts, load_parts

if TYPE_CHECKING:
    from torch import Tensor, nn

    from neox_core.parallel.row import BuildStage
    from neox_core.plan.runfile import RunPlan
    from neox_gpt.config.plan import GPTPlan
    from neox_gpt.gpt import GPT


def build_model(
    plan: GPTPlan,
    vocab_size: int,
    context: BuildContext,
    weights: Mapping[str, Tensor] | None = None,
    *,
    eod: int | None = None,
    recompute_by: Callable[..., Tensor] | None = None,
    backend: str = "inductor",
) -> GPT:
    """The model on `context.device` in `context.dtype`, its weights drawn from (context.seed, parameter name).

    vocab_size: rows of the embedding, see `model.shape.padded_vocab`. The weights are drawn in fp32 on the CPU and
    then moved, so every device and dtype starts from the same numbers. weights: by parameter name, instead of drawn
    ones. eod: the token that ends a document; a plan that splits documents needs it. recompute_by: what recomputes
    activations, in place of torch's function. backend: of torch.compile. Raises PluginError for a component that cannot
    be loaded, ConfigError for numbers that make no model, CheckpointError for weights of another model.
    """
    parts = load_parts(plan, vocab_size, context, eod, recompute_by, backend)
    model = _put_together(parts, plan)
    if weights is None:
        draw(model, parts, plan, context)
    else:
        _fill(model, weights)
    parts.changes.freeze(model)
    model.to(device="cpu" if context.host_first else context.device, dtype=context.dtype)
    mark_parameters(model, context.groups.tensor)
    if plan.compile is True:
        compile_layers(model, backend)
    return model


def build_decoder_stage(
    plan: RunPlan,
    vocab_size: int,
    context: BuildContext,
    build: BuildStage,
    *,
    eod: int | None = None,
    recompute_by: Callable[..., Tensor] | None = None,
    backend: str = "inductor",
) -> nn.Module:
    """This rank's stage of the planned model, as `build` cuts it from the row of layers; its parameters have the names
    of the whole model. The others as of `build_model`. Collective.
    """
    model = gpt_plan_in(plan)
    parts = load_parts(model, vocab_size, context, eod, recompute_by, backend)
    autocast = DTYPES[plan.precision.autocast] if plan.precision.autocast else None
    sends_keys = parts.shape.has_dropout or plan.curriculum is not None
    row = model.make_row(parts, autocast or context.dtype, autocast, sends_keys)
    stage = build(plan, row, context, partial(_start, parts=parts, plan=model, context=context), parts.recompute)
    if model.compile is True:
        compile_layers(stage, backend)
    return stage


def parameter_shapes(plan: GPTPlan, vocab_size: int) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter by name; no memory is taken for them."""
    model = build_on_meta(plan, vocab_size)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def build_on_meta(plan: GPTPlan, vocab_size: int) -> GPT:
    """The whole model without its numbers and its sparse layouts, for the shapes and names in it."""
    plan = evolve(plan, layout_of_layer=())  # a layout is drawn and looked at, which needs its numbers
    context = BuildContext(torch.device("meta"), torch.float32, Groups(None, None, 0, 1), seed=0)
    with torch.device("meta"):
        return _put_together(load_parts(plan, vocab_size, context, eod=0), plan)


def _put_together(parts: Parts, plan: GPTPlan) -> GPT:
    model = plan.make_model(
        parts.shape,
        parts.norm,
        parts.feed_forward,
        parts.position,
        parts.tensor,
        mixer=parts.mixer,
        narrow_loss=parts.narrow_loss,
        documents=parts.documents,
        recompute=parts.recompute,
        tables=parts.tables,
        compiled_loss=parts.compiled_loss,
        sparse_gradients=parts.sparse_gradients,
        joined=parts.joined,
    )
    for index, block in enumerate(model.layers):
        parts.changes.attach(cast("Block", block), f"layers.{index}")
    return model


def _start(stage: nn.Module, parts: Parts, plan: GPTPlan, context: BuildContext) -> None:
    draw(stage, parts, plan, context)
    parts.changes.freeze(stage)


def draw(model: nn.Module, parts: Parts, plan: GPTPlan, context: BuildContext) -> None:
    """Give every weight of `model`, a whole one or a stage, its first value."""
    init_parameters(model, parts.shape, context.seed, plan.init_method, plan.output_init_method, plan.init_std)
    parts.changes.start(model)


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
