"""The ZeRO engine of DeepSpeed over a plain module."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neox_core.build.shards import Shard, find_shards
from neox_core.errors import CheckpointError
from neox_core.model.dropout import sample_keys

if TYPE_CHECKING:
    from neox_core.build.context import BuildContext
    from neox_core.plan.runfile import RunPlan

_AUTOCAST = {"bf16": torch.bfloat16}


def build_engine(plan: RunPlan, model: nn.Module, optimizer: torch.optim.Optimizer, context: BuildContext) -> Engine:
    """Give model and optimizer to DeepSpeed, under plan.engine.

    Collective: every rank calls it.
    """
    options = [_plain_options(group) for group in optimizer.param_groups]
    engine = _initialize(plan, model, optimizer)
    # fp16 and bf16 at ZeRO 0 have stepped once, on gradients of zero, to make the optimizer allocate its state: that
    # decays the weights and counts as a step. Undo it.
    optimizer.state.clear()
    for group, option in zip(optimizer.param_groups, options, strict=True):
        group.update(option)
    built = Engine(engine, plan, optimizer, context)
    built.copy_weights_to_masters()
    return built


def _initialize(plan: RunPlan, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    os.environ["DS_ACCELERATOR"] = plan.cluster.device  # read once, when deepspeed is imported
    import deepspeed
    import deepspeed.ops

    # DeepSpeed compiles an op for shared-memory all-reduce at the first start of a process group on a CPU: about 45 s,
    # for a collective that only its inference calls. This table is where it looks whether an op can be built here;
    # filled in beforehand, it also saves the compiler probes of all other ops.
    deepspeed.ops.__compatible_ops__ = {"deepspeed_shm_comm": False}
    logging.getLogger("DeepSpeed").setLevel(logging.INFO if plan.debug else logging.ERROR)
    said = contextlib.nullcontext() if plan.debug else contextlib.redirect_stdout(io.StringIO())
    with said:  # BF16_Optimizer prints memory figures past any logger
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer, config=_engine_config(plan), dist_init_required=False
        )
    return engine


def _engine_config(plan: RunPlan) -> dict[str, Any]:
    """plan.engine, less what this module does itself."""
    config = dict(plan.engine)
    config.pop("torch_autocast", None)  # would also send gradients in half precision
    config["timers"] = {"throughput": {"enabled": False}}  # synchronizes the device at every step
    if _steps_parameters(plan):
        config["gradient_clipping"] = 0.0  # its clipping loops over the parameters and keeps the norm to itself
    return config


def _steps_parameters(plan: RunPlan) -> bool:
    """Whether the optimizer steps the model's own fp32 parameters, with no wrapper of DeepSpeed's between."""
    return plan.optim.zero_stage == 0 and plan.precision.dtype == "fp32"


def _plain_options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


class Engine:
    """One rank's model and optimizer in training.

    model: the module; its parameters are the weights in the planned dtype. optimizer: the planned optimizer, which
    holds what DeepSpeed lets it step. An update whose gradient is not finite is not made and counts as skipped; where
    that would cost a wait for the device at every step (fp32 at ZeRO 0 on a GPU, unless `on_nonfinite_loss` is
    "skip"), the loss of the step is made NaN instead, so that whoever reads it stops the run.
    """

    def __init__(self, engine: Any, plan: RunPlan, optimizer: torch.optim.Optimizer, context: BuildContext) -> None:
        self._engine = engine
        self._batch = plan.batch
        self._accumulation = plan.batch.gradient_accumulation
        self._groups = context.groups
        self._seed = context.seed
        self._dropout = plan.model.hidden_dropout > 0 or plan.model.attention_dropout > 0
        self._consumed = 0
        self._clipping = plan.optim.gradient_clipping
        self._plain = _steps_parameters(plan)
        self._autocast = _AUTOCAST[plan.precision.autocast] if plan.precision.autocast else None
        # To leave out an update the host must know that the gradient is not finite, which waits for the device; on a
        # CPU it costs nothing.
        self._looks = context.device.type == "cpu" or plan.train.on_nonfinite_loss == "skip"
        self._discarded = 0
        self._fp16 = plan.precision.dtype == "fp16"
        self._scales_loss = self._fp16 and plan.optim.zero_stage == 0
        self.device = context.device
        self.model: nn.Module = engine.module
        self.optimizer = optimizer
        self._options = [_plain_options(group) for group in optimizer.param_groups]
        self._norm: Tensor | float | None = None
        self.shards: tuple[Shard, ...] = find_shards(self.model, engine.optimizer, optimizer)
        self._trainable = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if self._plain and context.groups.data_size == 1:
            engine.enable_backward_allreduce = False  # it would copy every gradient twice, to add nothing
        self.model.train()

    def train_step(self, batches: Iterator[Tensor], lr: float) -> Tensor:
        """Forward and backward over one step's micro-batches, then the update at learning rate `lr`.

        batches: int64 [micro_batch, seq + 1] each. Returns this rank's mean loss, a scalar on the device; waits for
        nothing.
        """
        loss = self._forward_backward(batches)
        return self._update_plain(loss, lr) if self._plain else self._update(loss, lr)

    def evaluate(self, batches: Iterable[Tensor]) -> list[Tensor]:
        """This rank's loss of each batch, without dropout: scalars on the device."""
        self.model.eval()
        with torch.no_grad():
            losses = [self._loss(self.model, batch) for batch in batches]
        self.model.train()
        return losses

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
        """Take over what `changed_options` gave. Raises CheckpointError for another number of groups."""
        groups = self.optimizer.param_groups
        if len(options) != len(groups):
            raise CheckpointError(f"{len(options)} parameter groups are stored, the optimizer has {len(groups)}")
        for group, option in zip(groups, options, strict=True):
            group.update(option)

    def copy_weights_to_masters(self) -> None:
        """Make the fp32 copies equal to the weights of the model."""
        parameters = dict(self.model.named_parameters())
        for shard in self.shards:
            weight = parameters[shard.name].detach().reshape(-1)
            if shard.stepped is not parameters[shard.name]:
                shard.part_of(shard.stepped).copy_(weight.narrow(0, shard.first, shard.count))

    def close(self) -> None:
        """Let go of what the engine hooked into the model."""
        self._engine.destroy()

    def _forward_backward(self, batches: Iterator[Tensor]) -> Tensor:
        total = torch.zeros((), device=self.device)
        for micro_step in range(self._accumulation):
            if micro_step:
                self._engine.step()  # counts the micro-batch; the update comes with the last
            loss = self._loss(self._engine, next(batches), self._keys(micro_step))
            total += loss.detach()
            # DeepSpeed 0.19.8 divides the gradient by the loss scale here, and does not multiply the loss by it.
            self._engine.backward(loss.float() * self._engine.optimizer.loss_scale if self._scales_loss else loss)
        self._consumed += self._batch.train_batch
        return total / self._accumulation

    def _keys(self, micro_step: int) -> tuple[Tensor, ...]:
        """What dropout needs of the samples of a micro-batch, which lie as in `build.data.MicroBatches`."""
        if not self._dropout:
            return ()
        micro_batch, groups = self._batch.micro_batch, self._groups
        first = self._consumed + (micro_step * groups.data_size + groups.data_rank) * micro_batch
        return (sample_keys(self._seed, first, micro_batch, self.device),)

    def _loss(self, model: Any, batch: Tensor, keys: tuple[Tensor, ...] = ()) -> Tensor:
        batch = batch.to(self.device, non_blocking=True)
        with torch.autocast(self.device.type, self._autocast, enabled=self._autocast is not None):
            loss: Tensor = model(batch[:, :-1], batch[:, 1:], *keys)
        return loss

    def _update(self, loss: Tensor, lr: float) -> Tensor:
        self._set_lr(lr)
        scale = self._engine.optimizer.loss_scale if self._scales_loss else 1.0
        self._engine.step()
        norm = self._engine.get_global_grad_norm()
        self._norm = None if norm is None else norm / scale  # of the scaled gradient there, of the gradient elsewhere
        return loss

    def _update_plain(self, loss: Tensor, lr: float) -> Tensor:
        self._set_lr(lr)
        norm = nn.utils.clip_grad_norm_(self._trainable, self._clipping or float("inf"), foreach=True)
        self._norm = norm
        if not self._looks:
            loss = torch.where(torch.isfinite(norm), loss, torch.nan)
        elif not torch.isfinite(norm):
            self._discarded += 1
            for parameter in self._trainable:
                parameter.grad = None
        self._engine.step()  # also where DeepSpeed counts; without gradients the optimizer has nothing to do
        return loss

    def _set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
