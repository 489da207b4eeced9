"""The ZeRO engine of DeepSpeed over a plain module."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from neox_plain.api import BaseEngine, copy_marks, plain_options, split_groups
from torch import Tensor, nn

from neox_core.parallel.row import Routing
from neox_core.parallel.shard import Shard
from neox_deepspeed.measure import counted, forget_forward, timings
from neox_deepspeed.partitioned import refresh, whole_weights
from neox_deepspeed.patches import before_average, count_in_norm, forget_groups
from neox_deepspeed.recompute import configure_recompute
from neox_deepspeed.shards import find_shards, find_weights, group_contents, is_partitioned
from neox_deepspeed.start import clips_copies, clips_itself, initialize, owns_parameters, steps_parameters
from neox_deepspeed.swapped import at_hand, mend_buffers, new_state

if TYPE_CHECKING:
    from neox_core.contracts import Curriculum
    from neox_core.contracts.objective import Batch
    from neox_core.parallel.context import BuildContext
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
    split_groups(optimizer, model, plan.engine)
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


class Engine(BaseEngine):
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
        super().__init__(plan, engine.module, optimizer, context, curriculum)
        self._engine = engine
        self._clips = clips_itself(plan)
        self._fp16 = plan.precision.dtype == "fp16"
        self._scales_loss = self._fp16 and plan.optim.zero_stage == 0
        if self._fp16:
            self.loss_scaler().raise_error_at_min_scale = (
                False  # the run ends after max_skipped_steps, with more to say
            )
        self._profile_step: int | None = plan.engine.get("flops_profiler", {}).get("profile_step")
        data_rank = context.groups.data_rank
        self.shards: tuple[Shard, ...] = find_shards(self.model, engine.optimizer, optimizer, data_rank)
        self.weights: tuple[Shard, ...] = find_weights(self.model, data_rank)
        self.partitioned = is_partitioned(self.model)
        if steps_parameters(plan) and context.groups.data_size == 1:
            # It would copy every gradient twice, to add nothing; a pipeline has a switch of its own.
            engine.enable_backward_allreduce = engine.pipeline_enable_backward_allreduce = False
        if clips_copies(plan):
            self._clipped = [shard.stepped for shard in self.shards]
            self._stepped = {shard.name: shard.stepped for shard in self.shards}
            for shard in self.shards:
                weight = self._named[shard.name]
                copy_marks(weight, shard.stepped)
                if weight in self._counts:
                    self._counts[shard.stepped] = self._counts[weight]
        elif self._counts and not self._clips:
            count_in_norm(engine.optimizer, self._counts)
        self._scaled = [shard.stepped for shard in self.shards] if owns_parameters(plan) else self._clipped
        self._sparse = self._trained.sparse_weights
        self._hooks = contextlib.ExitStack()  # what is hooked refers to this engine
        if self._clips:
            self._hooks.callback(optimizer.register_step_pre_hook(lambda *_: self._before_update()).remove)
            if context.groups.data_size > 1:
                self._hooks.enter_context(before_average(engine, self._look))
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

    def evaluate(self, batches: Iterable[Tensor]) -> list[Tensor]:
        """This rank's loss of each batch, without dropout and auxiliary losses: scalars on the device."""
        losses = super().evaluate(batches)
        forget_forward(self._engine)
        return losses

    def skipped_steps(self) -> int:
        """Updates left out so far, those before a resume included."""
        return int(self._engine.skipped_steps) + self._discarded

    def count_skipped(self, steps: int) -> None:
        """Start counting from `steps`, in place of what was counted so far."""
        super().count_skipped(steps - int(self._engine.skipped_steps))

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
        self._hooks.close()
        self._engine.destroy()
        forget_groups()

    def _begin_step(self) -> None:
        super()._begin_step()
        if self._accumulation != self._engine.gradient_accumulation_steps():
            ranks = self._batch.micro_batch * self._batch.data_parallel
            self._engine.set_train_batch_size(self._accumulation * ranks)
            self._engine.micro_steps = 0  # a step ends where their number is divisible by that of a step

    def _evaluated(self) -> Any:
        return self._engine if self.partitioned else self.model

    def _shape_of(self, parameter: Any) -> tuple[int, ...]:
        return tuple(getattr(parameter, "ds_shape", parameter.shape))

    def _forward(
        self, batch: Batch, share: Tensor | None, keys: tuple[Tensor, ...], routing: Routing | None, micro_step: int
    ) -> Tensor:
        if micro_step:
            self._engine.step()  # counts the micro-batch; the update comes with the last
        with counted(self._engine, self._profile_step):
            return self._loss(self._engine, batch, share, keys, routing)

    def _backward(self, loss: Tensor, micro_step: int) -> None:
        # DeepSpeed 0.19.8 divides the gradient by the loss scale here, and does not multiply the loss by it.
        self._engine.backward(loss.float() * self._engine.optimizer.loss_scale if self._scales_loss else loss)

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
        self._clip_averaged()

    def _after_update(self, scale: float = 1.0) -> None:
        """scale: of DeepSpeed's norm."""
        if self._norm is None:
            norm = self._engine.get_global_grad_norm()
            self._norm = None if norm is None else norm / scale
        self._note_update()
