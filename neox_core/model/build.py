"""From a planned model to one with weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from neox_core.errors import CheckpointError
from neox_core.model.block import Block
from neox_core.model.gpt import GPT
from neox_core.model.init import init_parameters
from neox_core.model.loss import loss_and_gradient
from neox_core.model.model_inputs import Parts, load_parts
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.parallel.tensor import mark_parameters

if TYPE_CHECKING:
    from torch import Tensor, nn

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
    parts = load_parts(plan, vocab_size, context, eod)
    model = _put_together(parts)
    model.embedding.sparse_gradients = plan.sparse_gradients
    if weights is None:
        draw(model, parts, plan, context)
    else:
        _fill(model, weights)
    model.to(device="cpu" if context.host_first else context.device, dtype=context.dtype)
    mark_parameters(model, context.groups.tensor)
    return model


def compile_layers(model: nn.Module, backend: str = "inductor") -> None:
    """Have every layer of a model, or of a stage of one, compiled by torch.compile when it first runs in training.

    The loss of a few tokens too, where one rank has the whole vocabulary. backend: of torch.compile.
    """
    for module in model.modules():
        if isinstance(module, Block):
            module.compile(backend=backend)
    if isinstance(model, GPT) and model.tensor.size == 1:
        model.compiled_loss = torch.compile(loss_and_gradient, backend=backend)


def parameter_shapes(plan: ModelPlan, vocab_size: int) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter by name; no memory is taken for them."""
    context = BuildContext(torch.device("meta"), torch.float32, Groups(None, None, 0, 1), seed=0)
    with torch.device("meta"):
        model = _put_together(load_parts(plan, vocab_size, context, eod=0))
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def _put_together(parts: Parts) -> GPT:
    return GPT(
        parts.shape,
        parts.norm,
        parts.activation,
        parts.position,
        parts.tensor,
        narrow_loss=parts.narrow_loss,
        documents=parts.documents,
        recompute=parts.recompute,
        tables=parts.tables,
    )


def draw(model: nn.Module, parts: Parts, plan: ModelPlan, context: BuildContext) -> None:
    """Give every weight of `model`, a whole one or a stage, its first value."""
    init_parameters(model, parts.shape, context.seed, plan.init_method, plan.output_init_method, plan.init_std)


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
