"""A pipeline of stages under DeepSpeed's pipeline engine, with the interface of `Engine`."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from attrs import evolve
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from neox_core.contracts.objective import Batch
from neox_core.errors import ConfigError
from neox_core.parallel.tensor import mark_parameters
from neox_deepspeed.balance import BY_TIME, cut_by_time
from neox_deepspeed.engine import Engine
from neox_deepspeed.patches import go_backward_once, import_deepspeed
from neox_deepspeed.shared_head import SharedHead, SharedOutputs, with_help

if TYPE_CHECKING:
    from neox_core.contracts import Curriculum
    from neox_core.contracts.objective import Outputs
    from neox_core.parallel.context import BuildContext
    from neox_core.parallel.groups import Groups
    from neox_core.parallel.row import Recompute, Row, RowLayer
    from neox_core.plan.runfile import RunPlan


def build_stage(
    plan: RunPlan, row: Row, context: BuildContext, draw: Callable[[nn.Module], None], recompute: Recompute | None
) -> nn.Module:
    """This rank's stage of a model, a PipelineModule; its parameters have the names of the whole model.

    draw: gives the weights of a module their first values, by their names. recompute: of the blocks of the stage; None:
    all activations are kept. Collective. Raises ConfigError for a row that cannot be cut into so many stages.
    """
    layers, stages = tuple(row.layers), plan.cluster.pipeline_parallel
    blocks = sum(each.recomputed for each in layers)
    if blocks < stages:
        raise ConfigError(f"{blocks} layers cannot be split into {stages} pipeline stages")
    import_deepspeed(plan.cluster.device)
    go_backward_once()
    import deepspeed.comm
    from deepspeed.pipe import PipelineModule
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    deepspeed.comm.init_distributed(
        plan.cluster.backend, auto_mpi_discovery=False, verbose=False, dist_init_required=False
    )
    specs, names = _specs(layers)
    by_time = plan.cluster.partition in BY_TIME
    run = partial(_run_stage, routing=None, recompute=recompute and evolve(recompute, by=_recomputed))
    cut = cut_by_time(plan, row, context, draw, run) if by_time else None
    head = SharedHead(row, cut.shares, context.groups, context.device) if cut is not None and cut.shares else None
    common: dict[str, nn.Module] = dict(row.shared) if row.shared_is_trained_by_all else {}

    class Stage(PipelineModule):
        """Modules are named as in the whole model, wherever the names come from: DeepSpeed's count all layers."""

        draws, documents, sparse_weights = row.draws, row.documents, ()
        flops_per_token = row.flops_per_token
        shared_modules = tuple(row.shared.values())
        stages, notes = ((), ()) if cut is None else ((*cut.parts, *cut.shares), cut.notes)
        shares_head = head is not None
        _routing: Any = None
        _judge: Any = None

        def route(self, routing: Any) -> None:
            """What `RowLayer.run` gets from the next pass on."""
            self._routing = routing

        def judge_by(self, judge: Callable[[Outputs, tuple[Tensor, ...]], Tensor]) -> None:
            """What gives the loss of a micro-batch, of the outputs of its pass and what the last stage gets of it."""
            self._judge = judge

        def named_modules(
            self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
        ) -> Iterator[tuple[str, nn.Module]]:
            for name, module in super().named_modules(memo, prefix, remove_duplicate):
                yield _plain_name(name, names), module

        def _partition_layers(self, method: str = "uniform") -> None:
            if cut is None:
                super()._partition_layers(method)
                return
            self.parts = [*cut.parts]
            self._set_bounds(*self.parts[context.groups.pipe_rank :][:2])

        def _synchronize_tied_weights(self) -> None:
            """Both ends of a tied weight draw it from the same name."""

        def forward(self, passed: Any) -> Any:
            mine = range(self._local_start, self._local_stop)
            run = [(layers[index], partial(layers[index].run, self._module(index))) for index in mine]
            return _run_stage(run, passed, self._routing, recompute)

        def get_tied_weights_and_groups(self) -> list[tuple[nn.Parameter, Any]]:
            """What is held by several stages, each with those that hold it: their gradients are added up."""
            by_all = {id(each): each for each in _parameters(common) if each.requires_grad}
            tied = super().get_tied_weights_and_groups()
            tied = [each for each in tied if each[0].requires_grad and id(each[0]) not in by_all]
            for weight in by_all.values():
                if weight.grad is None:  # a stage that does not use it
                    weight.grad = torch.zeros_like(weight)
                tied.append((weight, context.groups.pipe))
            return tied

        def mean_loss(self, passed: Any, given: tuple[Tensor, ...]) -> Tensor:
            shared = head.outputs if head is not None and torch.is_grad_enabled() else row.outputs
            outputs = shared(self._module(len(layers) - 1), passed)
            loss: Tensor = self._judge(outputs, given)
            if isinstance(outputs, SharedOutputs):
                outputs.require_asked()
            return _after(loss, passed)

        def help(self, length: int, backward: Callable[[Tensor, Tensor], None]) -> None:
            """As `SharedHead.help`."""
            assert head is not None  # noqa: S101
            head.help(self._module(len(layers) - 1), length, backward)

        def hold(self, index: int) -> nn.Module:
            """The module of a layer, which is made where the layer is in another stage."""
            name = layers[index].module
            if _key(name) not in self.tied_modules and str(index) not in self._modules:
                self.add_module(name, layers[index].make())
            return self._module(index)

        def _module(self, index: int) -> nn.Module:
            name, place = layers[index].module, str(index)
            tied, key = self.tied_modules, _key(name)
            module: nn.Module = tied[key] if key in tied else self._modules[place if place in self._modules else name]
            return module

    grid = PipeModelDataParallelTopology(
        num_pp=context.groups.pipe_size, num_mp=context.groups.tensor.size, num_dp=context.groups.data_size
    )
    with contextlib.nullcontext() if plan.debug else contextlib.redirect_stdout(io.StringIO()):
        stage = Stage(specs, topology=grid, partition_method=plan.cluster.partition)
    stage.loss_fn = stage.mean_loss
    for name, module in row.shared.items():
        module.to(device=context.device)
        if context.groups.pipe_rank == 0 or name in common:
            stage.add_module(name, module)
    if head is not None:
        common[layers[-1].module] = stage.hold(len(layers) - 1)
    if context.groups.pipe_rank > 0:
        for weight in _parameters(common):
            weight.ds_pipe_replicated = True
    draw(stage)
    stage.to(device=context.device, dtype=context.dtype)
    mark_parameters(stage, context.groups.tensor)
    return stage


def _parameters(modules: Mapping[str, nn.Module]) -> list[nn.Parameter]:
    return [weight for module in modules.values() for weight in module.parameters()]


def _specs(layers: Sequence[RowLayer]) -> tuple[list[Any], dict[str, str]]:
    """(DeepSpeed's spec of each layer, DeepSpeed's name of each module -> its name in the whole model)."""
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    places = Counter(each.module for each in layers)
    specs, names = [], {}
    for index, layer in enumerate(layers):
        kind = type(layer.kind, (_Made,), {})
        if places[layer.module] == 1:
            specs.append(LayerSpec(kind, layer.make))
            names[str(index)] = layer.module
            continue
        with torch.device("meta"):
            weights = [name for name, _ in layer.make().named_parameters()]
        specs.append(TiedLayerSpec(_key(layer.module), kind, layer.make, tied_weight_attr=weights))
        names[f"tied_modules.{_key(layer.module)}"] = layer.module
    return specs, names


class _Made(nn.Module):
    """DeepSpeed takes a class, whose name `pipe-partition-method` matches; calling it gives what `make` makes."""

    def __new__(cls, make: Callable[[], nn.Module]) -> nn.Module:
        return make()


def _key(module: str) -> str:
    """The name of a module as a key of torch's ModuleDict, which takes no dot."""
    return module.replace(".", "-")


def _plain_name(name: str, names: Mapping[str, str]) -> str:
    """The name of a module or of what is within it in the whole model, from DeepSpeed's."""
    parts = name.split(".")
    for length in (1, 2):
        if (own := names.get(".".join(parts[:length]))) is not None:
            return ".".join([own, *parts[length:]])
    return name


class _After(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, *passed: Tensor) -> Tensor:
        ctx.save_for_backward(*passed)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return grad, *map(torch.zeros_like, ctx.saved_tensors)


def _after(loss: Tensor, passed: Any) -> Tensor:
    """`loss`, on which all numbers have a gradient that the stage before waits for, be it 0: of metrics it is."""
    numbers = [each for each in passed[1:] if each.requires_grad] if isinstance(passed, tuple) else []
    result: Tensor = _After.apply(loss, *numbers) if numbers and loss.requires_grad else loss
    return result


def _recomputed(function: Callable[..., Any], *given: Tensor) -> Any:
    return checkpoint(function, *given, use_reentrant=False, preserve_rng_state=False)


def _run_stage(
    layers: Sequence[tuple[RowLayer, Callable[[Any, Any], Any]]], passed: Any, routing: Any, recompute: Recompute | None
) -> Any:
    """`passed` through the layers of a stage; consecutive ones that may be recomputed make up the segments."""
    for recomputed, some in groupby(layers, key=lambda pair: pair[0].recomputed):
        runs = [run for _, run in some]
        if not recomputed or recompute is None or not torch.is_grad_enabled():
            passed = _through(runs, routing, passed)
            continue
        for start in range(0, len(runs), recompute.layers):
            segment = partial(_residual, runs[start : start + recompute.layers], routing)
            x, *rest = passed
            passed = _replaced(rest, recompute.by(segment, x, *rest))
    return passed


def _replaced(rest: Sequence[Tensor], changed: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What a layer passes on: from `changed` what is floating point, the residual stream first; others as before."""
    x, *numbers = (changed,) if isinstance(changed, Tensor) else changed
    return (x, *(numbers.pop(0) if each.is_floating_point() else each for each in rest))


def _through(runs: Sequence[Callable[[Any, Any], Any]], routing: Any, passed: Any) -> Any:
    for run in runs:
        passed = run(passed, routing)
    return passed


def _residual(runs: Sequence[Callable[[Any, Any], Any]], routing: Any, *passed: Tensor) -> Tensor | tuple[Tensor, ...]:
    x, *rest = _through(runs, routing, passed)
    numbers = [each for each in rest if each.is_floating_point()]
    return (x, *numbers) if numbers else x


def _require_as_many_groups(mine: int, groups: Groups) -> None:
    """Collective. Raises ConfigError where stages have other numbers of parameter groups: at ZeRO 1 DeepSpeed adds up
    the norm once for each, over the stages, so some would wait for ever.
    """
    counts = [0] * groups.pipe_size
    dist.all_gather_object(counts, mine, group=groups.pipe)
    if len({*counts}) > 1:
        listed = ", ".join(map(str, counts))
        raise ConfigError(
            f"at ZeRO 1 stages need equally many groups of parameters (with and without weight decay), not {listed}",
            hint="give each stage a block: `pipe-partition-method: type:transformer`; or set ZeRO stage 0",
        )


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
        if plan.optim.zero_stage:
            _require_as_many_groups(len(optimizer.param_groups), context.groups)
        self._length: int | None = None
        self._dtype = context.dtype
        self.stages, self.notes = self._trained.stages, self._trained.notes
        self._trained.judge_by(self._judge)
        if self._trained.shares_head and self._groups.pipe_rank < self._groups.pipe_size - 1:
            with_help(engine, self._help)

    def train_step(self, batches: Iterator[Tensor], lr: float) -> Tensor:
        """The loss is the mean of all data-parallel ranks, the same on each."""
        self._set_lr(lr)
        self._begin_step()
        self._trained.route(self._routing_now())
        some = self._given(islice(self._kept(batches), self._accumulation), self._consumed)
        pairs = [self._pair(each, share, self._keys(at)) for at, (each, share) in self._shared(some)]
        length = pairs[0][0][0].shape[1]
        if self._length not in (None, length):
            self._engine.reset_activation_shape()
        self._length = length
        self._end_step()
        self._norm, self._finite = None, True
        mean: Tensor = self._engine.train_batch(iter(pairs)).detach().clone()
        self._after_update()
        return mean

    def evaluate(self, batches: Iterable[Tensor]) -> list[Tensor]:
        """The mean of all batches of all data-parallel ranks, the same on each."""
        self._criterion.evaluation_metrics()  # those of an evaluation before
        some = self._shared(self._given(batches, 0))
        pairs = [self._pair(each, share, self._no_keys(each.tokens)) for _, (each, share) in some]
        self._engine.reset_activation_shape()
        mean = self._engine.eval_batch(iter(pairs), num_micro_batches=len(pairs))
        self._engine.reset_activation_shape()
        self.model.train()
        return [mean.detach().clone()]

    def change_options(self, options: list[dict[str, Any]]) -> None:
        """What the first stage has stored; where its groups share their options, of any number of groups.

        A stage that is the output layer alone has no norms and biases, so it has one group where others have two.
        """
        groups = self.optimizer.param_groups
        alike = len(options) != len(groups) and all(each == options[0] for each in options)
        super().change_options(options[:1] * len(groups) if alike else options)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all stages."""
        found: list[dict[str, tuple[int, ...]]] = [{}] * self._groups.pipe_size
        dist.all_gather_object(found, super().shapes(), group=self._groups.pipe)
        return {name: shape for stage in found for name, shape in stage.items()}

    def whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Of all stages, on all stages."""
        held: list[set[str]] = [set() for _ in range(self._groups.pipe_size)]
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

    def _shared(self, batches: Iterator[Batch]) -> Iterator[tuple[int, tuple[Batch, Tensor | None]]]:
        return enumerate(self._criterion.shares(batches, self._groups))

    def _pair(
        self, batch: Batch, share: Tensor | None, keys: tuple[Tensor, ...]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """What the first stage gets of a micro-batch, and what the last one."""
        last = (batch.tokens, *(each for each in (batch.keys, share) if each is not None))
        return (self._criterion.objective.inputs(batch).contiguous(), *keys), last

    def _judge(self, outputs: Outputs, given: tuple[Tensor, ...]) -> Tensor:
        """The loss of a micro-batch in the last stage: of its only pass, and what `_pair` has for it."""
        tokens, *rest = given
        batch = Batch(tokens, rest.pop(0) if self._criterion.draws else None, self._trained.documents)
        passes = iter((outputs,))

        def run(tokens: Tensor) -> Outputs:
            only = next(passes, None)
            if only is None:
                raise self._criterion.reference.fault("makes several passes over the model, and a pipeline makes one")
            return only

        with self._casting():
            return self._criterion.of(batch, rest[0] if rest else None)(run)

    def _help(self, backward: Callable[[Tensor, Tensor], None]) -> None:
        """Compute this stage's part of the output layer for a micro-batch."""
        with self._casting():
            self._trained.help(self._length, backward)

    def _no_keys(self, batch: Tensor) -> tuple[Tensor, ...]:
        """In place of those that an evaluation does not use, so that all that is sent has one form."""
        return (torch.zeros(len(batch), dtype=torch.int64, device=self.device),) if self._needs_keys else ()
