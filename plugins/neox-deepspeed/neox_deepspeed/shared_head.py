"""`pipe-partition-method: time+head`: each stage of a pipeline computes some positions of the output layer.

In the step of DeepSpeed's schedule in which the last stage has a micro-batch, it sends every other stage some positions
of what the output layer gets, with their labels. Each stage has a copy of that layer. At the end of its own work in the
step a stage returns the loss of its positions, and in the backward pass the gradient of what it got. The gradients of
the copies are added up at the end of the batch, as those of a tied embedding are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from neox_core.contracts.objective import IGNORED
from neox_core.errors import ConfigError
from neox_core.parallel.groups import wait_for

if TYPE_CHECKING:
    from neox_core.contracts.objective import Outputs, Scores
    from neox_core.parallel.groups import Groups
    from neox_core.parallel.row import Row

WHOLE = 1024
"""The shares of all stages add up to it."""
STEP = 32
"""Positions are dealt in multiples of it, where a sample has many: a loss computes as many at once."""
_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def cut_with_head(
    costs: Sequence[float], parts: tuple[int, ...], fits: Callable[[tuple[int, ...]], bool]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(where each stage begins and the end of the row, the share of the output layer of each stage, of WHOLE).

    costs: seconds of each layer, forward and backward, of which a third is forward; the last one is the output layer
    with the loss. parts: a cut to start from, of which one bound at a time is moved while that makes a micro-batch
    faster. fits: whether a cut is allowed.
    """
    best = _Shared(costs, parts)
    while True:
        near = [
            _Shared(costs, moved)
            for at in range(1, len(parts) - 1)
            for by in (-1, 1)
            if fits(moved := (*best.parts[:at], best.parts[at] + by, *best.parts[at + 1 :]))
        ]
        faster = min(near, key=lambda each: each.seconds, default=best)
        if faster.seconds >= best.seconds:
            return best.parts, best.shares()
        best = faster


class _Shared:
    """A cut of a row. Of two steps of the schedule that follow each other, stages go forward in one and backward in the
    other, neighbours the other way round; the output layer comes in that in which the last stage goes forward.

    seconds: of both steps.
    """

    def __init__(self, costs: Sequence[float], parts: tuple[int, ...]) -> None:
        self.parts, self._head = parts, costs[-1]
        whole = [sum([*costs[:-1], 0.0][begin:end]) for begin, end in pairwise(parts)]
        forward = [(len(whole) - 1 - stage) % 2 == 0 for stage in range(len(whole))]
        self._beside = [each / 3 if on else 2 * each / 3 for each, on in zip(whole, forward, strict=True)]
        self._level = _level(self._beside, self._head)
        self.seconds = max(self._level, *self._beside) + max(
            each - own for each, own in zip(whole, self._beside, strict=True)
        )

    def shares(self) -> tuple[int, ...]:
        """Those with which no stage waits for another in the step of the output layer; the last stage has one."""
        mine = [max(0.0, self._level - each) / self._head if self._head else 0.0 for each in self._beside[:-1]]
        shares = [int(WHOLE * each) for each in mine]
        if sum(shares) == WHOLE:
            shares[shares.index(max(shares))] -= 1
        return (*shares, WHOLE - sum(shares))


def _level(loads: Sequence[float], more: float) -> float:
    """Up to where the smallest of `loads` rise together when `more` is added to them."""
    for count, above in enumerate([*sorted(loads)[1:], float("inf")], 1):
        level = (sum(sorted(loads)[:count]) + more) / count
        if level <= above:
            break
    return level


def dealt(shares: Sequence[int], length: int) -> list[int]:
    """How many positions of a sample each stage computes, from the first ones on; the last stage has the rest."""
    step = STEP if length >= 16 * STEP else 1
    counts = [share * length // WHOLE // step * step for share in shares[:-1]]
    return [*counts, length - sum(counts)]


class SharedHead:
    """The output layer of a row, on one rank. shares: as of `cut_with_head`."""

    def __init__(self, row: Row, shares: Sequence[int], groups: Groups, device: torch.device) -> None:
        self._row, self._shares, self._device = row, shares, device
        self._ranks = dist.get_process_group_ranks(groups.pipe)
        self._stage = groups.pipe_rank
        self._form: tuple[int, list[int]] = (0, [])

    def outputs(self, head: nn.Module, passed: Any) -> Outputs:
        """In the last stage: what the pass gives, whose `cross_entropy` the other stages help to compute."""
        states, *rest = passed if isinstance(passed, tuple) else (passed,)
        counts = dealt(self._shares, states.shape[1])
        *others, own = states.split(counts, 1)
        sent = [_Sent(some, rank) for some, rank in zip(others, self._ranks, strict=False) if some.shape[1]]
        self._tell_form(states)
        return SharedOutputs(self._row.outputs(head, (own, *rest) if rest else own), sent)

    def help(self, head: nn.Module, length: int, backward: Callable[[Tensor, Tensor], None]) -> None:
        """In another stage: compute this stage's positions of one micro-batch.

        length: of a sample. backward: goes backward from a scalar with its gradient.
        """
        count, last = dealt(self._shares, length)[self._stage], self._ranks[-1]
        if self._form[0] != length:
            form = torch.empty(3, dtype=torch.int64, device=self._device)
            dist.recv(form, last)
            self._form = length, form.tolist()
        if not count:
            return
        kind, batch, width = self._form[1]
        states = torch.empty(batch, count, width, dtype=_TYPES[kind], device=self._device)
        labels = torch.empty(batch, count, dtype=torch.int64, device=self._device)
        dist.recv(states, last)
        dist.recv(labels, last)
        states.requires_grad_()
        mean = self._row.outputs(head, states).cross_entropy(labels)
        dist.send(mean.detach().to(_wide(states)), last)
        gradient = torch.empty_like(mean)
        received = gradient.to(_wide(states))
        dist.recv(received, last)
        backward(mean, received.to(mean.dtype))
        dist.send(states.grad, last)

    def _tell_form(self, states: Tensor) -> None:
        """To all other stages, which know when it changes."""
        batch, length, width = states.shape
        if self._form[0] == length:
            return
        form = [_TYPES.index(states.dtype), batch, width]
        for rank in self._ranks[:-1]:
            dist.send(torch.tensor(form, device=self._device), rank)
        self._form = length, form


class SharedOutputs:
    """What a pass gives whose positions are spread over the stages: see `contracts.objective.Outputs`.

    own: of the last positions. sent: those before them.
    """

    def __init__(self, own: Outputs, sent: Sequence[_Sent]) -> None:
        self._own, self._sent = own, sent
        self._mean: Tensor | None = None

    @property
    def auxiliary_losses(self) -> Mapping[str, Tensor]:
        return self._own.auxiliary_losses

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        return self._own.metrics

    def cross_entropy(self, labels: Tensor) -> Tensor:
        if self._mean is not None:
            raise _not_shared("takes the cross-entropy twice")
        counts = [each.states.shape[1] for each in self._sent]
        *others, mine = labels.split([*counts, labels.shape[1] - sum(counts)], 1)
        taken = [_Take.apply(each.states, each) for each in self._sent]
        for each, some in zip(self._sent, others, strict=True):
            each.ask(some)
        mean = self._own.cross_entropy(mine) * _share(mine, labels)
        for each, some, states in zip(self._sent, others, taken, strict=True):
            mean = mean + _Ask.apply(states, each) * _share(some, labels)
        self._mean = mean
        return mean

    def scores(self, labels: Tensor) -> Scores:
        raise _not_shared("takes scores")

    def logits(self) -> Tensor:
        raise _not_shared("takes logits")

    def require_asked(self) -> None:
        """Raises ConfigError where the loss does not go back through the cross-entropy: other stages would wait."""
        if self._mean is None or not self._mean.requires_grad:
            raise _not_shared("takes no cross-entropy with a gradient")


class _Sent:
    """Some positions of a micro-batch that another rank computes."""

    def __init__(self, states: Tensor, rank: int) -> None:
        self.states, self.rank = states, rank
        self._on_the_way: list[Any] = []
        self._kept: list[Tensor] = []

    def ask(self, labels: Tensor) -> None:
        for each in (self.states.detach().contiguous(), labels.contiguous()):
            self._send(each)

    def mean(self) -> Tensor:
        found = torch.empty((), dtype=_wide(self.states), device=self.states.device)
        dist.recv(found, self.rank)
        return found

    def go_backward(self, gradient: Tensor) -> Tensor:
        """Returns what `gradient` will be, with no numbers in it."""
        self._send(gradient.contiguous())
        self._found = torch.empty(self.states.shape, dtype=self.states.dtype, device=self.states.device)
        self._on_the_way.append(dist.irecv(self._found, self.rank))
        return self._found.new_zeros(()).expand(self._found.shape)

    def gradient(self) -> Tensor:
        for each in self._on_the_way:
            wait_for(each)
        self._kept.clear()
        return self._found

    def _send(self, what: Tensor) -> None:
        self._kept.append(what)
        self._on_the_way.append(dist.isend(what, self.rank))


class _Take(torch.autograd.Function):
    """The states that another stage computes with; the gradient is what it returns."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, sent: _Sent) -> Tensor:
        ctx.sent = sent
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.sent.gradient(), None


class _Ask(torch.autograd.Function):
    """The mean loss of another stage. It is made last: the backward pass starts with it, and both stages work."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, sent: _Sent) -> Tensor:
        ctx.sent = sent
        return sent.mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.sent.go_backward(gradient), None


def _share(some: Tensor, labels: Tensor) -> Tensor:
    """Of the labels that count, the part that is in `some`."""
    return (some != IGNORED).sum() / (labels != IGNORED).sum().clamp(min=1)


def _wide(states: Tensor) -> torch.dtype:
    return torch.promote_types(states.dtype, torch.float32)


def _not_shared(what: str) -> ConfigError:
    said = f"the objective {what} of a batch, and the stages of this pipeline share one cross-entropy"
    return ConfigError(said, hint="set pipe-partition-method: time")


def with_help(engine: Any, help: Callable[[Callable[[Tensor, Tensor], None]], None]) -> None:
    """Let DeepSpeed's engine of an earlier stage call `help` in each step in which the last stage goes forward.

    help: gets what goes backward from a scalar with its gradient.
    """
    from deepspeed.runtime.pipe.schedule import PipeInstruction, TrainSchedule

    class Help(PipeInstruction):
        """Compute this stage's positions of the output layer."""

    class Schedule(TrainSchedule):
        def steps(self) -> Iterator[list[Any]]:
            for step, commands in enumerate(super().steps()):
                at, odd = divmod(step - (self.stages - 1), 2)
                helps = not odd and 0 <= at < self.micro_batches
                yield [*commands, Help()] if helps else commands

    def schedule() -> Any:
        return Schedule(micro_batches=engine.micro_batches, stages=engine.num_stages, stage_id=engine.stage_id)

    engine._train_schedule = schedule  # noqa: SLF001
    perform = {**engine._INSTRUCTION_MAP, Help: lambda _: help(partial(_go_backward, engine))}  # noqa: SLF001
    engine._INSTRUCTION_MAP = perform  # noqa: SLF001


def _go_backward(engine: Any, loss: Tensor, gradient: Tensor) -> None:
    """As DeepSpeed's engine of a stage that is not the last."""
    sums = engine.using_bf16_optimizer
    if sums:
        engine.optimizer.clear_lp_grads()
    engine._running_engine_backward = True  # noqa: SLF001  else a hook of it raises
    try:
        with torch.autocast(loss.device.type, enabled=False):  # which the forward pass may be in
            loss.backward(gradient)
    finally:
        engine._running_engine_backward = False  # noqa: SLF001
    if sums and not engine._config.bfloat16_config.immediate_grad_update:  # noqa: SLF001
        engine.optimizer.update_hp_grads(clear_lp_grads=False)
