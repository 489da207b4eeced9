"""The train step in torch alone, over a whole model whose fp32 weights the optimizer steps in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from neox_core.errors import ConfigError, PluginError
from neox_core.parallel.row import Routing
from neox_core.parallel.shard import Shard
from neox_core.parallel.tensor import cut_of
from neox_plain.average import GradientAverage
from neox_plain.base_engine import BaseEngine
from neox_plain.factors import split_groups
from neox_plain.spread import spread_of

if TYPE_CHECKING:
    from neox_core.contracts.curriculum import Curriculum
    from neox_core.contracts.objective import Batch
    from neox_core.parallel.context import BuildContext
    from neox_core.parallel.groups import Groups
    from neox_core.plan.runfile import RunPlan


def build_engine(
    plan: RunPlan,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    context: BuildContext,
    curriculum: Curriculum | None = None,
    made_as: type[Engine] | None = None,
) -> Engine:
    """The engine over `model` and `optimizer`. curriculum: the one that the plan names. made_as: a class of it.

    Collective: every rank calls it. Raises ConfigError for an optimizer that does not work with the layout.
    """
    _spread(model, context.groups)
    split_groups(optimizer, model, plan.engine)
    return (made_as or Engine)(plan, model, optimizer, context, curriculum)


def _spread(model: nn.Module, groups: Groups) -> None:
    """All data-parallel ranks start from what the first of them has, or the first of those with the same part."""
    if groups.data_size > 1:
        for each in (*model.parameters(), *model.buffers()):
            parts = spread_of(each)
            dist.broadcast(each.detach(), group_src=0, group=groups.data if parts is None else parts.copies)


class Engine(BaseEngine):
    """One rank's model and optimizer in training. The optimizer steps the parameters of the model themselves."""

    partitioned = False

    def __init__(
        self,
        plan: RunPlan,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        context: BuildContext,
        curriculum: Curriculum | None = None,
    ) -> None:
        super().__init__(plan, model, optimizer, context, curriculum)
        groups = context.groups
        if self._averaging is not None and groups.model is not None:
            raise ConfigError(
                f"{plan.optim.optimizer.name} exchanges between copies of the whole model by itself",
                hint="model-parallel-size 1 goes with it",
            )
        if self._averaging is not None and plan.optim.uses:
            raise PluginError(
                f"{plan.optim.optimizer.owner} exchanges gradients by itself, and uses {', '.join(plan.optim.uses)} too"
            )
        if self._averaging is not None and any(spread_of(each) is not None for each in self._named.values()):
            raise ConfigError(
                f"{plan.optim.optimizer.name} exchanges gradients by itself, and some parameters are spread over ranks",
                hint="choose another optimizer, such as Adam",
            )
        self._closes, self._modes = "closure" in plan.optim.uses, "modes" in plan.optim.uses
        if self._modes:
            optimizer.train()  # a ModalOptimizer, as `probe_optimizer` has seen
        names = {id(each): name for name, each in self._named.items()}

        def look(some: list[nn.Parameter], gradients: list[Tensor]) -> None:
            self._look(dict(zip((names[id(each)] for each in some), gradients, strict=True)))

        averages = groups.data_size > 1
        self._average = GradientAverage(self._clipped, groups.data, groups.data_size, look) if averages else None
        self.weights = tuple(_whole(name, parameter) for name, parameter in self._named.items())
        self.shards = tuple(shard for shard in self.weights if shard.stepped.requires_grad)
        _require_groups(self.shards, optimizer)
        self.model.train()

    def train_step(self, batches: Iterator[Tensor], lr: float) -> Tensor:
        """Forward and backward over one step's micro-batches, then the update at learning rate `lr`.

        batches: int64 [micro_batch, seq + 1] each. Returns this rank's mean loss, a scalar on the device, without
        waiting for it.
        """
        loss = self._gradients(self._kept(batches))
        self._set_lr(lr)
        self._clip_averaged()
        if not self._closes:
            self.optimizer.step()
        elif self._finite is not False:
            norm = self._norm
            self.optimizer.step(self._gradients_again)
            self._norm = norm
        self.optimizer.zero_grad(set_to_none=True)
        self._note_update()
        return loss

    def evaluate(self, batches: Iterable[Tensor]) -> list[Tensor]:
        """As `contracts.engine.Engine.evaluate`."""
        with self.at_hand():
            return super().evaluate(batches)

    def _gradients(self, batches: Iterator[Tensor]) -> Tensor:
        """The gradients of a step, averaged over ranks; returns the mean of this rank's losses."""
        loss = self._forward_backward(batches)
        if (average := self._average_now()) is not None:
            average.finish()
        return loss

    def _gradients_again(self) -> Tensor:
        """The closure of an optimizer: the gradients of the same samples at the weights as they are now."""
        self.optimizer.zero_grad(set_to_none=True)
        self._consumed = self._began.consumed
        with torch.enable_grad():
            loss = self._gradients(iter(self._began.batches))
        self._clip_averaged()
        return loss

    def copy_weights_to_masters(self) -> None:
        """The weights are their own masters."""

    def copy_masters_to_weights(self) -> None:
        """The weights are their own masters."""

    def filled_groups(self) -> AbstractContextManager[None]:
        """The optimizer's groups, which hold all that it steps at any time."""
        return nullcontext()

    def whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by name, one after the other; each is whole until the next is asked for. Collective."""
        for name, parameter in self._named.items():
            yield name, self._groups.tensor.whole(parameter, parameter.detach())

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """Around reading or writing weights and state: all of it is in memory. With modes, in that of evaluation."""
        optimizer: Any = self.optimizer
        if self._modes:
            optimizer.eval()
        try:
            yield
        finally:
            if self._modes:
                optimizer.train()

    def new_state(self, shard: Shard, state: str, dtype: torch.dtype) -> Tensor:
        """Zeros for a state of the optimizer, laid out as `shard.stepped` is."""
        return torch.zeros_like(shard.stepped, dtype=dtype)

    def weights_changed(self) -> None:
        """No other copy of the weights is kept."""

    def close(self) -> None:
        """Take the hooks off the parameters."""
        if self._average is not None:
            self._average.close()
            self._average = None  # it refers to this engine

    def _forward(
        self, batch: Batch, share: Tensor | None, keys: tuple[Tensor, ...], routing: Routing | None, micro_step: int
    ) -> Tensor:
        return self._loss(self.model, batch, share, keys, routing)

    def _backward(self, loss: Tensor, micro_step: int) -> None:
        if micro_step == self._accumulation - 1 and (average := self._average_now()) is not None:
            average.start()
        (loss / self._accumulation).backward()

    def _average_now(self) -> GradientAverage | None:
        """What averages the gradients of this step; None where they stay this rank's own."""
        return None if self._averaging is not None and not self._averaging.needs_average() else self._average


def _whole(name: str, parameter: nn.Parameter) -> Shard:
    parts = spread_of(parameter)
    stores = None if parts is None else parts.copy == 0
    return Shard(name, tuple(parameter.shape), 0, parameter.numel(), parameter, 0, True, cut_of(parameter), stores)


def _require_groups(shards: tuple[Shard, ...], optimizer: torch.optim.Optimizer) -> None:
    """Raises PluginError where the optimizer steps no copy of a parameter."""
    stepped = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
    for shard in shards:
        if id(shard.stepped) not in stepped:
            raise PluginError(f"the optimizer has no group for the parameter {shard.name}")
