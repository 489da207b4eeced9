"""The training loop. It waits for the device only at log steps, after an evaluation and before a save, in `report`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import CDLL
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.checkpoint.resume import RunSchedule
    from neox_core.contracts.engine import Engine
    from neox_core.plan.runfile import RunPlan
    from neox_core.plan.stored.state import TrainState


class Reporter(Protocol):
    """The loop's report of its progress; `neox_core.run.report.Report` is one."""

    def step(self, step: int, loss: Tensor, lr: float, engine: Engine) -> None:
        """Called after every update; reads the device at log steps. Raises RankError for non-finite numbers."""

    def validation(self, step: int, losses: Sequence[Tensor]) -> float:
        """Called with this rank's loss of each batch of an evaluation. Returns the mean over all ranks. Collective."""

    def check(self) -> None:
        """Called before a save. Raises RankError when a loss since the last check was not finite."""

    def say(self, message: str) -> None: ...


class Saver(Protocol):
    """Writes the loop's checkpoints; `neox_core.checkpoint.checkpointer.Checkpointer` is one."""

    def save(self, state: TrainState) -> Path | str | None: ...


class Stop(Protocol):
    """`poll()`: whether the user has asked the run to end; the answer is the same on every rank."""

    def poll(self) -> bool: ...


def train(
    engine: Engine,
    batches: Iterator[Tensor],
    valid: Callable[[], Iterable[Tensor]],
    schedule: RunSchedule,
    report: Reporter,
    checkpointer: Saver,
    stop: Stop,
    state: TrainState,
    plan: RunPlan,
    tokens_of: Callable[[int], int] | None = None,
) -> bool:
    """Train from `state.step` to plan.train.train_iters. Returns False when the run was stopped before.

    batches: this rank's micro-batches, int64 [micro_batch, seq + 1], from `state.step` on. valid: one fresh pass over
    the validation batches. schedule: step -> learning rate. The last step is saved, also when the run was stopped.
    The engine may wait for the device as well: see `contracts.Engine.train_step`.
    tokens_of: tokens of a step, by its number; None: whole samples. Collective: all ranks have the same plan and step.
    """
    if state.step == 0 and 0 in plan.checkpoint.extra_save:
        _save(checkpointer, state, report)
    first, memory = state.step, keep_freed_memory()
    for step in range(first, plan.train.train_iters):
        lr = schedule(step)
        with schedule.around(step, engine.optimizer):
            loss = engine.train_step(batches, lr)
        if plan.cluster.device == "cpu" and (step == first or _due(step, plan.train.log_interval)):
            next(memory)
        state.advance(plan, None if tokens_of is None else tokens_of(step))
        report.step(state.step, loss, lr, engine)

        if _due(state.step, plan.train.eval_interval) and plan.train.eval_iters:
            report.validation(state.step, engine.evaluate(valid()))
        stopped = stop.poll() or _due(state.step, plan.train.exit_interval)
        last = stopped or state.step == plan.train.train_iters
        if last or state.step in plan.checkpoint.extra_save or _due(state.step, plan.checkpoint.save_interval):
            report.check()
            _save(checkpointer, state, report)
        if stopped:
            return state.step == plan.train.train_iters
    return True


def keep_freed_memory() -> Iterator[None]:
    """Have glibc keep what a step frees for the next one, whose page faults would cost up to half of its time.

    First advanced when the weights and the optimizer's state are there, which stay: among what is freed they would
    leave holes. Steps leave holes, too: later it gives back all that is free where the process has grown by a quarter.
    """
    if not hasattr(library := CDLL(None), "mallopt") or "MALLOC_MMAP_MAX_" in os.environ:  # which is the user's choice
        yield from repeat(None)
    library.mallopt(-4, 0)  # M_MMAP_MAX: large tensors come from the heap
    while True:
        library.malloc_trim(0)  # at first what imports and compilers have left
        yield
        usual = _own_pages()
        while _own_pages() <= 1.25 * usual:
            yield


def _own_pages() -> int:
    """Of memory that no file has."""
    _, resident, of_files, *_ = map(int, Path("/proc/self/statm").read_text("utf-8").split())
    return resident - of_files


def _save(checkpointer: Saver, state: TrainState, report: Reporter) -> None:
    if (saved := checkpointer.save(state)) is not None:
        report.say(f"saved {saved}")


def _due(step: int, interval: int | None) -> bool:
    return bool(interval and step % interval == 0)
