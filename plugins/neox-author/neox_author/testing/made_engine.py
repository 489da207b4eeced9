"""An engine over a fresh model, in a rank, and the samples that its clauses train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from neox_author.testing.clauses import hold
from neox_author.testing.resolved import SEQ, VOCAB
from neox_author.testing.spread_rows import spread_rows
from neox_core.checkpoint.checkpointer import Checkpointer
from neox_core.parallel.context import BuildContext, build_context
from neox_core.parallel.groups import build_groups
from neox_core.run.optimizer import build_optimizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neox_plain.api import Spread

    from neox_author.testing.engines import Tried
    from neox_core.parallel.groups import Groups

LRS = (0.01, 0.02, 0.005, 0.01)


def samples_of(step: int, count: int) -> Tensor:
    """int64 [count, seq + 1], the same in every layout."""
    return torch.randint(2, VOCAB, (count, SEQ + 1), generator=torch.Generator().manual_seed(step))


def batches(plan: Any, groups: Groups | None, steps: range) -> Iterator[Tensor]:
    """The micro-batches of a rank."""
    size, rank = (1, 0) if groups is None else (groups.data_size, groups.data_rank)
    for step in steps:
        whole = samples_of(step, plan.batch.train_batch)
        for micro_step in range(plan.batch.gradient_accumulation):
            first = (micro_step * size + rank) * plan.batch.micro_batch
            yield whole[first : first + plan.batch.micro_batch]


class Told(nn.Module):
    """A module of the model that is told the step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []

    def at_step(self, step: int) -> None:
        self.steps.append(step)


class Made:
    """An engine over a fresh model, in this rank."""

    def __init__(
        self, tried: Tried, groups: Groups | None = None, *, draws: bool = False, parts: Spread | None = None
    ) -> None:
        self.plan, maker = tried.plan, tried.maker()
        self.groups = build_groups(self.plan.cluster) if groups is None else groups
        self.context: BuildContext = build_context(self.plan, self.groups, 0)
        architecture = self.plan.architecture.load()[0](self.plan.model)
        if self.groups.pipe_size > 1:
            self.model = architecture.build_stage(self.plan, VOCAB, self.context, maker.build_stage())
        else:
            self.model = architecture.build(VOCAB, self.context)
            self.model.told = Told()
            self.seen: list[tuple[bool, bool]] = []
            self.keys: list[Tensor] = []
            self.model.register_forward_pre_hook(self._see, with_kwargs=True)
            self.model.draws = draws
            if parts is not None:
                spread_rows(self.model.layers[0], parts)
        steps = self.plan.train.train_iters
        self.optimizer = build_optimizer(
            self.plan.optim, self.model, self.groups.data, architecture.tables, total_steps=steps
        )
        self.engine = maker.build(self.model, self.optimizer, self.context)

    def _see(self, model: nn.Module, given: tuple[Any, ...], named: Any) -> None:
        self.seen.append((model.training, torch.is_grad_enabled()))
        self.keys += [each.clone() for each in given[1:] if isinstance(each, Tensor)]

    def train(self, steps: range) -> tuple[list[float], list[float]]:
        """The losses, means of all ranks, and the norms."""
        read: list[Tensor] = []

        def reading(batch: Tensor) -> Tensor:
            read.append(batch)
            return batch

        stream = map(reading, batches(self.plan, self.groups, steps))
        losses, norms = [], []
        for step in steps:
            read.clear()
            loss = self.engine.train_step(stream, LRS[step])
            right = len(read) == self.plan.batch.gradient_accumulation
            hold(right, f"train_step() reads the micro-batches of a step, and no others; it reads {len(read)}")
            hold(isinstance(loss, Tensor) and not loss.dim(), "train_step() gives a scalar")
            total = loss.detach().clone()
            dist.all_reduce(total)
            losses.append(float(total) / dist.get_world_size())
            norms.append(float(self.engine.grad_norm() or 0))
        return losses, norms

    def weights(self) -> dict[str, Tensor]:
        return {name: each.detach().float().clone() for name, each in self.engine.whole_weights()}

    def checkpointer(self) -> Checkpointer:
        """What saves and loads the checkpoints of this engine."""
        return Checkpointer(self.plan, self.engine, self.context)
