"""A pipeline of stages under DeepSpeed's pipeline engine, with the interface of `Engine`."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from neox_core.engine.engine import Engine, needs_keys
from neox_core.engine.start import autocast_dtype, prepare_import
from neox_core.engine.weights import token_weights
from neox_core.errors import ConfigError
from neox_core.model.block import Block
from neox_core.model.build import draw
from neox_core.model.embedding import Embedding
from neox_core.model.gpt import spared_from_decay
from neox_core.model.model_inputs import load_parts
from neox_core.model.stages import Feed, FinalNorm, Head, TransformerLayer, embed, loss, run_stage
from neox_core.parallel.tensor import mark_parameters

if TYPE_CHECKING:
    from neox_core.contracts import Curriculum
    from neox_core.model.model_inputs import Parts
    from neox_core.model.recompute import Recompute
    from neox_core.model.routing import Routing
    from neox_core.parallel.context import BuildContext
    from neox_core.plan.runfile import RunPlan

_TIED = "embedding"


def build_stage(plan: RunPlan, vocab_size: int, context: BuildContext, *, eod: int | None = None) -> nn.Module:
    """This rank's stage of the planned model, a PipelineModule; its parameters have the names of a whole model.

    Collective. The weights are drawn as `build.model.build_model` draws them. Raises ConfigError for what a pipeline
    cannot train or cannot be cut into.
    """
    parts = load_parts(plan.model, vocab_size, context, eod)
    _check(parts, plan.cluster.pipeline_parallel)
    prepare_import(plan)
    import deepspeed.comm
    from deepspeed.pipe import PipelineModule
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    deepspeed.comm.init_distributed(
        plan.cluster.backend, auto_mpi_discovery=False, verbose=False, dist_init_required=False
    )
    autocast = autocast_dtype(plan)
    feed = Feed(
        position=parts.position,
        tensor=parts.tensor,
        dtype=autocast or context.dtype,
        autocast=autocast,
        sends_keys=needs_keys(plan),
        documents=parts.documents,
        recompute=parts.recompute,
        tables=parts.tables,
    )
    last = parts.shape.num_layers + 1
    everywhere = _trains_for_all_layers(parts)

    class Stage(PipelineModule):  # type: ignore[misc]  # deepspeed has no types
        """Modules are named as in a whole model, wherever the names come from: DeepSpeed's count all layers."""

        shape = parts.shape
        documents = parts.documents

        @property
        def recompute(self) -> Recompute | None:
            return feed.recompute

        @recompute.setter
        def recompute(self, value: Recompute | None) -> None:
            feed.recompute = value

        @property
        def routing(self) -> Routing | None:
            return feed.routing

        @routing.setter
        def routing(self, value: Routing | None) -> None:
            feed.routing = value

        def named_modules(
            self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
        ) -> Iterator[tuple[str, nn.Module]]:
            for name, module in super().named_modules(memo, prefix, remove_duplicate):
                yield _plain_name(name, last), module

        def _synchronize_tied_weights(self) -> None:
            """Both ends of a tied weight draw it from the same name."""

        def forward(self, passed: Any) -> Any:
            specs = self._layer_specs[self._local_start : self._local_stop]
            blocks = [spec.typename is TransformerLayer for spec in specs]
            return run_stage(list(zip(self.forward_funcs, blocks, strict=True)), passed, feed.recompute)

        def get_tied_weights_and_groups(self) -> list[tuple[nn.Parameter, Any]]:
            """What is held by several stages, each with those that hold it: their gradients are added up."""
            tied: list[tuple[nn.Parameter, Any]] = super().get_tied_weights_and_groups()
            if everywhere:
                for weight in parts.position.parameters():
                    if weight.grad is None:  # a stage without a block
                        weight.grad = torch.zeros_like(weight)
                    tied.append((weight, context.groups.pipe))
            return tied

        def no_weight_decay(self) -> set[str]:
            return spared_from_decay(self)

        def mean_loss(self, hidden: Tensor, labels: tuple[Tensor, ...]) -> Tensor:
            """labels: and, where batches count unequally, what the mean of this one is multiplied by."""
            weight = self.tied_modules[_TIED].weight if parts.shape.tie_embeddings else self.forward_funcs[-1].weight
            mean = loss(hidden, weight, labels[0], feed, narrow=parts.narrow_loss)
            return mean if len(labels) == 1 else mean * labels[1]

    grid = PipeModelDataParallelTopology(
        num_pp=context.groups.pipe_size, num_mp=context.groups.tensor.size, num_dp=context.groups.data_size
    )
    with contextlib.nullcontext() if plan.debug else contextlib.redirect_stdout(io.StringIO()):
        stage = Stage(_layers(parts, feed), topology=grid, partition_method=plan.cluster.partition)
    stage.loss_fn = stage.mean_loss
    if context.groups.pipe_rank == 0 or everywhere:
        stage.position = parts.position  # the first stage trains what the others do not use
    if context.groups.pipe_rank > 0 and everywhere:
        for weight in parts.position.parameters():
            weight.ds_pipe_replicated = True
    parts.position.to(device=context.device)
    draw(stage, parts, plan.model, context)
    stage.to(device=context.device, dtype=context.dtype)
    mark_parameters(stage, parts.tensor)
    return stage


def _check(parts: Parts, stages: int) -> None:
    shape = parts.shape
    if shape.num_layers < stages:
        raise ConfigError(f"{shape.num_layers} layers cannot be dealt to {stages} pipeline stages")


def _trains_for_all_layers(parts: Parts) -> bool:
    """Whether the position has numbers that every layer looks at; those of others are the embedding's alone."""
    prepared: Any = parts.position.prepare(torch.arange(1), torch.float32)  # type: ignore[operator]
    return any(isinstance(each, Tensor) and each.requires_grad for each in tree_leaves(prepared))


def _layers(parts: Parts, feed: Feed) -> list[Any]:
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    shape, tensor = parts.shape, parts.tensor
    table = (Embedding, shape.vocab_size, shape.hidden_size, shape.hidden_dropout, tensor)
    make_block = partial(Block, shape, parts.norm, parts.activation, tensor)
    if shape.num_unique_layers == shape.num_layers:
        blocks = [LayerSpec(TransformerLayer, make_block, layer, feed) for layer in range(shape.num_layers)]
    else:
        blocks = _shared_blocks(shape.layer_order, make_block, feed)
    if shape.tie_embeddings:
        head = TiedLayerSpec(_TIED, *table, forward_fn=lambda embedding, hidden: hidden)
    else:
        head = LayerSpec(Head, shape.hidden_size, shape.vocab_size, tensor, bias=False)
    first = TiedLayerSpec(_TIED, *table, forward_fn=lambda embedding, passed: embed(embedding, passed, feed))
    return [first, *blocks, LayerSpec(FinalNorm, parts.norm, feed), head]


def _shared_blocks(order: Sequence[int], make_block: Callable[[], Block], feed: Feed) -> list[Any]:
    """A block that several layers use is one on each stage, and its gradient the sum of all stages'."""
    from deepspeed.pipe import TiedLayerSpec

    with torch.device("meta"):
        weights = [name for name, _ in TransformerLayer(make_block, 0, feed).named_parameters()]

    def spec(layer: int, block: int) -> Any:
        return TiedLayerSpec(
            f"layer{block}",
            TransformerLayer,
            make_block,
            layer,
            feed,
            forward_fn=lambda module, passed: module(passed, layer),
            tied_weight_attr=weights,
        )

    return [spec(layer, block) for layer, block in enumerate(order)]


def _plain_name(name: str, last: int) -> str:
    """DeepSpeed's name of a module to a whole model's: layers are numbered 0: embedding, 1 ... : blocks, norm, head."""
    if name.startswith("tied_modules."):
        shared = re.fullmatch(r"layer(\d+)(?:\.(?:block\.)?(.+))?", tied := name.removeprefix("tied_modules."))
        return tied if shared is None else ".".join(filter(None, ("layers", *shared.groups())))
    found = re.fullmatch(r"(\d+)(?:\.(.+))?", name)
    if found is None:
        return name
    index, rest = int(found[1]), found[2]
    if index > last:
        return "head" if rest is None else f"head.{rest}"
    if index == last:
        return "last" if rest is None else rest.replace("norm", "final_norm", 1)
    own = f"layers.{index - 1}"
    return f"{own}.layer" if rest is None else own + rest.removeprefix("block")


class PipelineEngine(Engine):
    """One rank's stage in training. A step's micro-batches go through the stages one behind the other (1F1B)."""

    def __init__(
        self,
        engine: Any,
        plan: RunPlan,
        optimizer: torch.optim.Optimizer,
        context: BuildContext,
        curriculum: Curriculum | None = None,
    ) -> None:
        super().__init__(engine, plan, optimizer, context, curriculum)
        self._length: int | None = None
        self._dtype = context.dtype

    def train_step(self, batches: Iterator[Tensor], lr: float) -> Tensor:
        """The loss is the mean of all data-parallel ranks, the same on each."""
        self._set_lr(lr)
        self._route()
        some = [self._arrive(batch) for batch in islice(self._kept(batches), self._accumulation)]
        pairs = self._pairs(some, [self._keys(index) for index in range(len(some))])
        length = pairs[0][0][0].shape[1]
        if self._length not in (None, length):
            self._engine.reset_activation_shape()
        self._length = length
        self._consumed += self._batch.train_batch
        self._norm, self._finite = None, True
        mean: Tensor = self._engine.train_batch(iter(pairs)).detach().clone()
        self._after_update()
        return mean

    def evaluate(self, batches: Iterable[Tensor]) -> list[Tensor]:
        """The mean of all batches of all data-parallel ranks, the same on each."""
        some = [self._arrive(batch) for batch in batches]
        pairs = self._pairs(some, [self._no_keys(batch) for batch in some])
        self._engine.reset_activation_shape()
        mean = self._engine.eval_batch(iter(pairs), num_micro_batches=len(pairs))
        self._engine.reset_activation_shape()
        self.model.train()
        return [mean.detach().clone()]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all stages."""
        found: list[dict[str, tuple[int, ...]]] = [{}] * self._groups.pipe_size
        dist.all_gather_object(found, super().shapes(), group=self._groups.pipe)
        return {name: shape for stage in found for name, shape in stage.items()}

    def whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Of all stages, on all stages."""
        held = [set() for _ in range(self._groups.pipe_size)]
        dist.all_gather_object(held, set(self._named), group=self._groups.pipe)
        for name, shape in self.shapes().items():
            owner = next(stage for stage, names in enumerate(held) if name in names)
            if owner == self._groups.pipe_rank:
                weight = self._named[name].detach()
                whole = self._groups.tensor.whole(self._named[name], weight).contiguous()
            else:
                whole = torch.empty(shape, dtype=self._dtype, device=self.device)
            dist.broadcast(whole, group_src=owner, group=self._groups.pipe)
            yield name, whole

    def _pairs(self, batches: list[Tensor], keys: list[tuple[Tensor, ...]]) -> list[tuple[tuple[Tensor, ...], ...]]:
        """What the first stage gets of each batch, and what the last one."""
        given = [(batch[:, :-1].contiguous(), *own) for batch, own in zip(batches, keys, strict=True)]
        documents, labels = self.model.documents, [batch[:, 1:] for batch in batches]
        if documents is None:
            return list(zip(given, [(each,) for each in labels], strict=True))
        labels = [documents.labels(own[0], each) for own, each in zip(given, labels, strict=True)]
        weights = (
            [()] * len(labels) if self._weighing is None else zip(token_weights(batches, self._weighing, self._groups))
        )
        return [(own, (each, *weight)) for own, each, weight in zip(given, labels, weights, strict=True)]

    def _no_keys(self, batch: Tensor) -> tuple[Tensor, ...]:
        """In place of those that an evaluation does not use, so that all that is sent has one form."""
        return (torch.zeros(len(batch), dtype=torch.int64, device=self.device),) if self._needs_keys else ()
