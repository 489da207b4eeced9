"""The ZeRO engine of DeepSpeed over a plain module."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from torch import Tensor, nn

from neox_core.contracts.optim import AveragingOptimizer
from neox_core.errors import CheckpointError
from neox_core.parallel.row import Routing
from neox_core.parallel.sample_keys import sample_keys
from neox_core.parallel.shard import Shard
from neox_core.parallel.tensor import cut_of
from neox_core.untrusted import replaces, short
from neox_deepspeed.measure import counted, forget_forward, timings
from neox_deepspeed.norm import clip, copy_marks, counts_here
from neox_deepspeed.partitioned import refresh, whole_weights
from neox_deepspeed.patches import forget_groups
from neox_deepspeed.recompute import configure_recompute
from neox_deepspeed.shards import find_shards, find_weights, group_contents, is_partitioned
from neox_deepspeed.start import (
    autocast_dtype,
    clips_itself,
    initialize,
    plain_options,
    steps_cut_copies,
    steps_parameters,
)
from neox_deepspeed.swapped import at_hand, mend_buffers, new_state
from neox_deepspeed.weights import token_weights

if TYPE_CHECKING:
    from neox_core.contracts import Curriculum
    from neox_core.parallel.context import BuildContext
    from neox_core.parallel.row import Documents
    from neox_core.plan.runfile import RunPlan


def build_engine(
    plan: RunPlan,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    context: BuildContext,
    curriculum: Curriculum | None = None,
) -> Engine:
    """Give model and optimizer to DeepSpeed, under plan.engine. curriculum: the one that the plan names.

    Collective: every rank calls it.
    """
    options = [plain_options(group) for group in optimizer.param_groups]
    engine = initialize(plan, model, optimizer, context.groups)
    mend_buffers(engine.optimizer, model)
    recompute = plan.model.recompute
    if recompute is not None and recompute.deepspeed:
        configure_recompute(recompute, context.groups)
    # fp16 and bf16 at ZeRO 0 have stepped once, on gradients of zero, to make the optimizer allocate its state: that
    # decays the weights and counts as a step. Undo it.
    optimizer.state.clear()
    for group, option in zip(optimizer.param_groups, options, strict=True):
        group.update(option)
    from neox_deepspeed.pipeline import PipelineEngine  # builds on this module

    kind = Engine if context.groups.pipe_size == 1 else PipelineEngine
    built = kind(engine, plan, optimizer, context, curriculum)
    if not built.partitioned:
        built.copy_weights_to_masters()
    return built


@frozen
class _Began:
    """A step as it began. batches: those that it has read; consumed: samples of the run before it."""

    batches: list[Tensor]
    consumed: int
    loss_scale: float | None


class Engine:
    """One rank's model and optimizer in training.

    model: the module; its parameters are the weights in the planned dtype. optimizer: the planned optimizer, which
    holds what DeepSpeed lets it step. An update whose gradient is not finite is not made and counts as skipped; where
    that would cost a wait for the device at every step (on a GPU, in fp32 at ZeRO 0 or with owned parameters, unless
    `on_nonfinite_loss` is "skip"), it is made, and `made_update` says on the device that it should not have been.
    """

    def __init__(
        self,
        engine: Any,
        plan: RunPlan,
        optimizer: torch.optim.Optimizer,
        context: BuildContext,
        curriculum: Curriculum | None = None,
    ) -> None:
        self._engine = engine
        self._curriculum = curriculum
        self._batch = plan.batch
        self._accumulation = plan.batch.gradient_accumulation
        self._groups = context.groups
        self._seed = context.seed
        self._consumed = 0
        self._clipping = plan.optim.gradient_clipping
        self._clips = clips_itself(plan)
        self._autocast = autocast_dtype(plan)
        # To leave out an update the host must know that the gradient is not finite, which waits for the device; on a
        # CPU it costs nothing.
        self._looks = context.device.type == "cpu" or plan.train.on_nonfinite_loss == "skip"
        self._discarded = 0
        self._finite: bool | Tensor = True
        self._began = _Began([], 0, None)
        self._left_out: _Began | None = None  # the first of the steps in a row that are left out
        self._fp16 = plan.precision.dtype == "fp16"
        self._scales_loss = self._fp16 and plan.optim.zero_stage == 0
        self.device = context.device
        self.model: nn.Module = engine.module
        self._trained: Any = self.model  # a `parallel.row.Model`, or a stage of one
        self._needs_keys = self._trained.draws or curriculum is not None
        self.optimizer = optimizer
        self._averaging = optimizer if isinstance(optimizer, AveragingOptimizer) else None
        self._options = [plain_options(group) for group in optimizer.param_groups]
        if self._fp16:
            self.loss_scaler().raise_error_at_min_scale = (
                False  # the run ends after max_skipped_steps, with more to say
            )
        self._norm: Tensor | float | None = None
        self._profile_step: int | None = plan.engine.get("flops_profiler", {}).get("profile_step")
        data_rank = context.groups.data_rank
        self.shards: tuple[Shard, ...] = find_shards(self.model, engine.optimizer, optimizer, data_rank)
        self.weights: tuple[Shard, ...] = find_weights(self.model, data_rank)
        self.partitioned = is_partitioned(self.model)
        documents: Documents | None = self._trained.documents
        self._weighing = documents if documents is not None and documents.mask_loss else None
        self._named = dict(self.model.named_parameters())
        self._clipped: list[Any] = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if steps_parameters(plan) and context.groups.data_size == 1:
            engine.enable_backward_allreduce = False  # it would copy every gradient twice, to add nothing
        if steps_cut_copies(plan):
            self._clipped = [shard.stepped for shard in self.shards]
            for shard in self.shards:
                copy_marks(self._named[shard.name], shard.stepped)
        self._scaled = [shard.stepped for shard in self.shards] if plan.optim.owns_parameters else self._clipped
        self._sparse = self._trained.sparse_weights
        if self._clips:
            optimizer.register_step_pre_hook(lambda *_: self._before_update())
        self.model.train()

    def train_step(self, batches: Iterator[Tensor], lr: float) -> Tensor:
        """Forward and backward over one step's micro-batches, then the update at learning rate `lr`.

        batches: int64 [micro_batch, seq + 1] each. Returns this rank's mean loss, a scalar on the device, without
        waiting for it. Where DeepSpeed holds copies of the weights (neither in fp32 at ZeRO 0 nor where ranks own whole
        parameters), it waits a few times in each update, to see whether the gradient is finite.
        """
        if self._averaging is not None and self._groups.data_size > 1:
            self._engine.enable_backward_allreduce = self._averaging.needs_average()
        return self._update(self._forward_backward(self._kept(batches)), lr)

    def made_update(self) -> bool | Tensor:
        """Whether the last step's gradient was finite, so that its update was made.

        A scalar on the device where the host does not look at it; the weights are spoilt then if it is False.
        """
        return bool(self._engine.was_step_applied()) and self._finite

    def find_nonfinite(self) -> list[str]:
        """The parameters whose gradient was not finite, this rank's own before any average, last layer first.

        Of the first in the row of steps that ends with the last one, none of which made an update. Repeats that step,
        so nothing can be trained or saved afterwards. Collective.
        """
        if self._left_out is None:
            return []
        found: dict[str, None] = {}

        def look(name: str, gradient: Tensor) -> None:
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            if not torch.isfinite(values).all():
                found[name] = None

        hooks = [each.register_hook(partial(look, name)) for name, each in self._named.items() if each.requires_grad]
        again, scaler = self._left_out, self.loss_scaler()
        self._consumed = again.consumed
        if scaler is not None:
            scaler.cur_scale = again.loss_scale
        self.train_step(iter(again.batches), lr=0.0)
        for hook in hooks:
            hook.remove()
        return list(found)

    def evaluate(self, batches: Iterable[Tensor]) -> list[Tensor]:
        """This rank's loss of each batch, without dropout: scalars on the device.

        Where some tokens do not count, each is weighed so that the mean over all ranks is the mean over tokens.
        """
        self.model.eval()
        weights: Sequence[Tensor] | None = None
        if self._weighing is not None:
            batches = [self._arrive(batch) for batch in batches]
            weights = token_weights(batches, self._weighing, self._groups)
        with torch.no_grad():
            losses = [self._loss(self._engine if self.partitioned else self.model, batch) for batch in batches]
        forget_forward(self._engine)
        self.model.train()
        return losses if weights is None else [loss * each for loss, each in zip(losses, weights, strict=True)]

    def grad_norm(self) -> float | None:
        """Norm of the whole gradient of the last step, before clipping; None before the first. Waits for the device."""
        return None if self._norm is None else float(self._norm)

    def skipped_steps(self) -> int:
        """Updates left out so far, those before a resume included."""
        return int(self._engine.skipped_steps) + self._discarded

    def count_skipped(self, steps: int) -> None:
        """Start counting from `steps`: those of the run that this one resumes."""
        self._discarded = steps

    def start_at(self, samples: int) -> None:
        """`samples` of the run are consumed: dropout's masks follow from the number of the sample."""
        self._consumed = samples

    def loss_scale(self) -> float | None:
        """None unless training in fp16."""
        return float(self._engine.optimizer.loss_scale) if self._fp16 else None

    def timings(self) -> dict[str, float]:
        """`elapsed_time_ms_<part>` of the last step where wall-clock-breakdown or the profiler times it, else empty."""
        return timings(self._engine)

    def loss_scaler(self) -> Any:
        """The object whose plain attributes are the state of fp16's loss scale; None in other types."""
        if not self._fp16:
            return None
        wrapper = self._engine.optimizer
        return wrapper.loss_scale_config if hasattr(wrapper, "loss_scale_config") else wrapper.loss_scaler

    def changed_options(self) -> list[dict[str, Any]]:
        """Of each parameter group, the options that are no longer what they were at the start, but for the lr."""
        return [
            {name: value for name, value in group.items() if name not in ("params", "lr") and value != first.get(name)}
            for group, first in zip(self.optimizer.param_groups, self._options, strict=True)
        ]

    def change_options(self, options: list[dict[str, Any]]) -> None:
        """Take over what `changed_options` gave. Raises CheckpointError for another number of groups or other types."""
        groups = self.optimizer.param_groups
        if len(options) != len(groups):
            raise CheckpointError(f"{len(options)} parameter groups are stored, the optimizer has {len(groups)}")
        for group, option in zip(groups, options, strict=True):
            for name, value in option.items():
                if name in ("params", "lr") or not replaces(value, group.get(name)):
                    message = f"the optimizer's group option {short(name)!r} cannot be {short(value)!r}"
                    raise CheckpointError(message, hint="load another checkpoint, or set no-load-optim: true")
            group.update(option)

    def copy_weights_to_masters(self) -> None:
        """Make the fp32 copies equal to the weights of the model."""
        parameters = dict(self.model.named_parameters())
        for shard in self.shards:
            weight = parameters[shard.name].detach().reshape(-1)
            if shard.stepped is not parameters[shard.name]:
                shard.part_of(shard.stepped).copy_(weight.narrow(0, shard.first, shard.count))

    def copy_masters_to_weights(self) -> None:
        """Make the weights of the model the fp32 copies, rounded; where each rank has whole copies."""
        for shard in self.shards:
            weight = self._named[shard.name]
            if shard.whole and shard.stepped is not weight:
                weight.detach().copy_(shard.stepped.detach())

    @contextlib.contextmanager
    def filled_groups(self) -> Iterator[None]:
        """The optimizer's groups with all that it steps in them, as they are outside of ZeRO 3 anyway."""
        contents = group_contents(self._engine.optimizer, self.optimizer)
        before = [group["params"] for group in self.optimizer.param_groups]
        for group, tensors in zip(self.optimizer.param_groups, contents, strict=True):
            group["params"] = tensors
        try:
            yield
        finally:
            for group, tensors in zip(self.optimizer.param_groups, before, strict=True):
                group["params"] = tensors

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The whole shape of every parameter: of those that are cut, with the parts on other ranks."""
        shapes = {}
        for name, parameter in self.model.named_parameters():
            shape, cut = tuple(getattr(parameter, "ds_shape", parameter.shape)), cut_of(parameter)
            shapes[name] = shape if cut is None else cut.whole_shape(shape)
        return shapes

    def stores(self, name: str) -> bool:
        """Whether this rank speaks for a parameter, or for its part of one, among those of one copy of the model."""
        return counts_here(self._named[name], self._groups)

    def whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by name, one after the other; each is whole until the next is asked for. Collective."""
        for name, weight in whole_weights(self.model):
            yield name, self._groups.tensor.whole(self._named[name], weight)

    def at_hand(self) -> contextlib.AbstractContextManager[None]:
        """Around reading or writing `shards`, `weights` and the optimizer's state: some of it may be in files."""
        return at_hand(self._engine.optimizer, self.model)

    def new_state(self, shard: Shard, state: str, dtype: torch.dtype) -> Tensor:
        """Zeros for a state of the optimizer, laid out as `shard.stepped` is, and in a file where that is."""
        return new_state(self._engine.optimizer, shard.stepped, state, dtype)

    def weights_changed(self) -> None:
        """To be called after writing into `weights`. Collective."""
        refresh(self._engine.optimizer)

    def close(self) -> None:
        """Let go of what the engine hooked into the model."""
        self._engine.destroy()
        forget_groups()

    def _kept(self, batches: Iterator[Tensor]) -> Iterator[Tensor]:
        """`batches`, of which those of this step are kept, and where it began, in case it has to be repeated."""
        self._began = began = _Began([], self._consumed, self.loss_scale())

        def keep(batch: Tensor) -> Tensor:
            began.batches.append(batch)
            return batch

        return map(keep, batches)

    def _routing_now(self) -> Routing | None:
        """Which tokens the layers of the model see in this step; None: all see all."""
        if self._curriculum is None or not self._curriculum.routed_layers:
            return None
        kept = self._curriculum.kept_tokens(self._consumed // self._batch.train_batch)
        return Routing(self._curriculum.routed_layers, self._curriculum.seed, kept)

    def _forward_backward(self, batches: Iterator[Tensor]) -> Tensor:
        total, routing = torch.zeros((), device=self.device), self._routing_now()
        weights: Sequence[Tensor] | None = None
        if self._weighing is not None:
            some = [self._arrive(batch) for batch in islice(batches, self._accumulation)]
            weights, batches = token_weights(some, self._weighing, self._groups), iter(some)
        for micro_step in range(self._accumulation):
            if micro_step:
                self._engine.step()  # counts the micro-batch; the update comes with the last
            with counted(self._engine, self._profile_step):
                loss = self._loss(self._engine, next(batches), self._keys(micro_step), routing)
            loss = loss if weights is None else loss * weights[micro_step]
            total += loss.detach()
            # DeepSpeed 0.19.8 divides the gradient by the loss scale here, and does not multiply the loss by it.
            self._engine.backward(loss.float() * self._engine.optimizer.loss_scale if self._scales_loss else loss)
        self._consumed += self._batch.train_batch
        return total / self._accumulation

    def _keys(self, micro_step: int) -> tuple[Tensor, ...]:
        """What dropout and routing need of a micro-batch's samples, which lie as in `build.data.MicroBatches`."""
        if not self._needs_keys:
            return ()
        micro_batch, groups = self._batch.micro_batch, self._groups
        first = self._consumed + (micro_step * groups.data_size + groups.data_rank) * micro_batch
        return (sample_keys(self._seed, first, micro_batch, self.device),)

    def _arrive(self, batch: Tensor) -> Tensor:
        """`batch` on the device. The host waits for a copy to a GPU unless it is from page-locked memory."""
        if self.device.type == "cpu" or batch.device == self.device:
            return batch
        return batch.pin_memory().to(self.device, non_blocking=True)

    def _loss(self, model: Any, batch: Tensor, keys: tuple[Tensor, ...] = (), routing: Routing | None = None) -> Tensor:
        batch = self._arrive(batch)
        with torch.autocast(self.device.type, self._autocast, enabled=self._autocast is not None):
            loss: Tensor = model(batch[:, :-1], batch[:, 1:], *keys, routing=routing)
        return loss

    def _update(self, loss: Tensor, lr: float) -> Tensor:
        self._set_lr(lr)
        self._finite = True
        scale = self._engine.optimizer.loss_scale if self._scales_loss else 1.0
        averages = self._averaging is not None and not self._clips
        self._norm = self._clip(self._clipping * scale) / scale if averages else None
        self._engine.step()
        self._after_update(scale)
        return loss

    def _before_update(self) -> None:
        """Where DeepSpeed does not clip: called with all gradients averaged, before the optimizer uses them."""
        if self._norm is not None:  # torch calls again where a class's step calls that of a parent in use by itself
            return
        for parameter in self._sparse:  # rows were sent; every optimizer and the clipping take what is whole
            parameter.grad = parameter.grad.to_dense()
        self._norm = norm = self._clip(self._clipping)
        finite = torch.isfinite(norm)
        self._finite = bool(finite) if self._looks else finite
        if self._finite is False:
            self._discarded += 1
            for parameter in self._scaled:
                parameter.grad = None

    def _after_update(self, scale: float = 1.0) -> None:
        """scale: of DeepSpeed's norm."""
        if self._norm is None:
            norm = self._engine.get_global_grad_norm()
            self._norm = None if norm is None else norm / scale
        if self.made_update() is not False:
            self._left_out = None
        elif self._left_out is None:
            self._left_out = self._began

    def _clip(self, largest: float) -> Tensor:
        own = self._averaging is not None and self._groups.data_size > 1 and not self._averaging.needs_average()
        return clip(self._clipped, self._scaled, largest, self._groups, own=own)

    def _set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
