"""Reports the progress of a run. The only module that reads a number from the device, and only at log steps."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from attrs import define, field

from neox_core.checkpoint.rng import undisturbed
from neox_core.contracts.engine import Peak
from neox_core.contracts.host import Monitor, RunInfo
from neox_core.errors import RankError
from neox_core.hooks.blame import culprit_of
from neox_core.run.skipped import SkippedSteps
from neox_core.terminal import echo

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.contracts.engine import Engine
    from neox_core.parallel.groups import Groups
    from neox_core.run.metrics import Metrics
    from neox_core.run.startup import Startup

GIB = 2**30


def mean_of_ranks(losses: Sequence[Tensor], groups: Groups) -> float:
    """The mean over all ranks of the losses of each rank's batches. Collective; waits for the device."""
    mean = torch.stack([loss.detach().float() for loss in losses]).mean()
    if groups.world is not None:
        dist.all_reduce(mean, group=groups.world)
        mean = mean / dist.get_world_size(groups.world)
    value: float = mean.item()
    return value


@define(eq=False)
class Kept:
    """What callbacks get: the mean loss of each step, and the values that were logged, since they were last taken."""

    losses: list[tuple[int, float]] = field(factory=list)
    values: dict[str, float] = field(factory=dict)

    def take_losses(self) -> list[tuple[int, float]]:
        """The mean loss of each step since the last call, with the step; the caller now has them alone."""
        losses, self.losses = self.losses, []
        return losses

    def take_values(self) -> dict[str, float]:
        """The logged values since the last call, by name; the caller now has them alone."""
        values, self.values = self.values, {}
        return values


class Report:
    """Collects losses on the device; at each log step reduces them over the ranks and calls the monitors of rank 0.

    log_interval: in optimizer steps. flops_per_token: forward and backward, of the whole model. Raises RankError
    from `step` and `check` when a loss is not finite and `stop_on_nonfinite` is set, and for gradients that are not.
    skipped: ends the run after too many skipped steps in a row. data_hash: of the samples so far, by the number of
    finished steps; it fits into a float. tokens_of: tokens that a step reads, by its number from 0; None:
    run.tokens_per_step. metrics: of components.
    """

    def __init__(
        self,
        run: RunInfo,
        monitors: Sequence[Monitor],
        groups: Groups,
        device: torch.device,
        *,
        log_interval: int,
        flops_per_token: float,
        peak: Peak,
        stop_on_nonfinite: bool,
        skipped: SkippedSteps | None = None,
        startup: Startup | None = None,
        data_hash: Callable[[int], int] | None = None,
        tokens_of: Callable[[int], int] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.run = run
        self.monitors = list(monitors)
        self.groups = groups
        self.device = device
        self.log_interval = log_interval
        self.flops_per_token = flops_per_token
        self.peak = peak
        self.stop_on_nonfinite = stop_on_nonfinite
        self._skipped = skipped or SkippedSteps(most=0)
        self.kept: Kept | None = None
        self._startup = startup
        self._data_hash = data_hash
        self._tokens_of = tokens_of
        self._metrics = metrics
        self._tokens = 0  # since the last log, of all ranks
        self._unread: list[tuple[int, Tensor, bool | Tensor]] = []  # (step, loss, update made), not yet checked
        self._means: list[float] = []  # losses since the last log, reduced over the ranks
        self._steps = 0
        self._train_s = 0.0
        self._wait_s = 0.0
        self._step_began: float | None = None

    def timed(self, batches: Iterator[Tensor], alive: Callable[[], None] | None = None) -> Iterator[Tensor]:
        """`batches`, with the time spent waiting for them measured. A step starts when its first batch is requested."""
        while True:
            asked = time.perf_counter()
            if self._step_began is None:
                self._step_began = asked
            if alive is not None:
                alive()
            batch = next(batches, None)
            if batch is None:
                return
            self._wait_s += time.perf_counter() - asked
            yield batch

    def step(self, step: int, loss: Tensor, lr: float, engine: Engine) -> None:
        """Called after an update. step: finished steps, with this one. loss: this rank's mean of the step, a scalar."""
        self.run.progress.reached(step)
        made = engine.made_update()
        self._unread.append((step, loss.detach(), made))
        self._skipped.note(step, made=made is not False)
        if self._skipped.too_many:
            self._read_losses()  # a non-finite loss is the more useful of the two reports
            self._skipped.fail()
        self._steps += 1
        self._tokens += self.run.tokens_per_step if self._tokens_of is None else self._tokens_of(step - 1)
        if self._steps == 1 and self._startup is not None:
            self._read_losses()  # waits until the device has finished the step
            self._startup.mark("first_step")
            self.log(step, self._startup.values())
            self._startup = None
        if step % self.log_interval and step != self.run.last_step:
            self._end_of_step()
            return
        self._read_losses()
        self._end_of_step()
        values = self._values(lr, engine)
        if self._data_hash is not None:
            values["data_hash"] = float(self._data_hash(step))
        self.log(step, values)
        self._means, self._steps, self._tokens, self._train_s, self._wait_s = [], 0, 0, 0.0, 0.0

    def check(self) -> None:
        """Check the losses since the last check; called before a checkpoint is written, so that only good ones are."""
        self._read_losses()

    def validation(self, step: int, losses: Sequence[Tensor], split: str = "valid") -> float:
        """Log the mean of the losses over all ranks as `<split>_loss`, and return it. losses: of this rank.

        Also what the objective measured beside them, as `<split>_<name>`.
        """
        value = mean_of_ranks(losses, self.groups)
        values = {"loss": value, "perplexity": math.exp(value) if value < 700 else math.inf}
        values |= {} if self._metrics is None else self._metrics.of_evaluation()
        self.log(step, {f"{split}_{name}": each for name, each in values.items()})
        return value

    def say(self, message: str) -> None:
        """Show one line to people, from rank 0."""
        self._tell(lambda monitor: monitor.say(message))

    def close(self) -> None:
        self._tell(lambda monitor: monitor.close())
        self.monitors = []

    def _end_of_step(self) -> None:
        if self._step_began is not None:
            self._train_s += time.perf_counter() - self._step_began
            self._step_began = None

    def _read_losses(self) -> None:
        if not self._unread:
            return
        steps = [step for step, *_ in self._unread]
        numbers = [loss.float().reshape(()) for _, loss, _ in self._unread]
        numbers += [made.logical_not().float() for *_, made in self._unread if isinstance(made, torch.Tensor)]
        mine = torch.stack(numbers)  # [steps, or twice as many]: losses, then 1 for an update that spoilt the weights
        self._unread = []
        if self.groups.world is None:
            ranks = mine[None]
        else:
            gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(self.groups.world))]
            dist.all_gather(gathered, mine, group=self.groups.world)
            ranks = torch.stack(gathered)  # [ranks, as above]
        table = ranks.tolist()
        for column, step in enumerate(steps):
            losses = [row[column] for row in table]
            bad = [rank for rank, loss in enumerate(losses) if not math.isfinite(loss)]
            if bad and self.stop_on_nonfinite:
                where = f"on rank {', '.join(map(str, bad))}{self._skipped.source()}"
                hint = "resume from an earlier checkpoint, the last but one if the last leads here again; "
                hint += "lower the learning rate or clip gradients, or set on-nonfinite-loss: skip"
                raise RankError(f"the loss is {losses[bad[0]]} at step {step} {where}", hint=hint)
            if any(row[column + len(steps)] for row in table if len(row) > len(steps)):
                self._skipped.fail_at(step)
            if not bad:
                self._means.append(sum(losses) / len(losses))
            if self.kept is not None:
                self.kept.losses.append((step, sum(losses) / len(losses)))

    def _values(self, lr: float, engine: Engine) -> dict[str, float]:
        step_s = self._train_s / self._steps
        tokens_per_s = self._tokens / self._train_s
        values = {
            "loss": sum(self._means) / len(self._means) if self._means else math.nan,
            "lr": lr,
            "tokens_per_s": tokens_per_s,
            "step_s": step_s,
            "data_wait_s": self._wait_s / self._steps,
            "memory_gib": self._memory(),
            "skipped_steps": float(engine.skipped_steps()),
            "world_size": float(self.run.num_ranks),
        }
        grad_norm, loss_scale = engine.grad_norm(), engine.loss_scale()
        if grad_norm is not None:
            values["grad_norm"] = grad_norm
        if loss_scale is not None:
            values["loss_scale"] = loss_scale
        values.update(engine.timings())
        if self._metrics is not None:
            values.update(self._metrics.read())
        passes: float = getattr(engine, "passes", 1.0)
        flops = tokens_per_s * passes * self.flops_per_token / self.run.num_ranks  # of each rank
        values["tflops"] = flops / 1e12
        mfu = self.peak.mfu(flops)
        if mfu is not None:
            values["mfu"] = mfu
        elif self.peak.flops is not None:
            self.peak = Peak(None, "the machine is faster now than when its peak was measured; set peak-tflops")
            self.say(str(self.peak))
        return values

    def _memory(self) -> float:
        """Peak memory so far, in GiB: of tensors on a GPU, of the process on a CPU."""
        if self.device.type == "cuda":
            highest: float = torch.cuda.max_memory_allocated(self.device) / GIB
            return highest
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / GIB if sys.platform == "darwin" else peak * 1024 / GIB  # macOS counts bytes, Linux KiB

    def log(self, step: int, values: dict[str, float]) -> None:
        if self.kept is not None:
            self.kept.values.update(values)
        self._tell(lambda monitor: monitor.log(step, values))

    def rewound(self, step: int) -> None:
        """Forget what came after `step`, to which the run has gone back."""
        self.run.progress.reached(step)
        self._skipped.note(step, made=True)
        self._unread, self._means, self._steps, self._tokens = [], [], 0, 0
        self._train_s, self._wait_s, self._step_began = 0.0, 0.0, None

    def _tell(self, call: Callable[[Monitor], None]) -> None:
        for monitor in list(self.monitors):
            try:
                with undisturbed():
                    call(monitor)
            except (Exception, SystemExit) as error:  # noqa: BLE001 a monitor must not stop a run, whatever it raises
                self.monitors.remove(monitor)
                name = type(monitor).__name__
                culprit = culprit_of(error, type(monitor).__module__)
                said = f"{type(error).__name__}: {error}{culprit and f' (in {culprit})'}"
                self.say(f"monitor {name} failed and is switched off: {said}")
                with suppress(OSError):  # the log may be on the disk that is full
                    echo(f"monitor {name} failed: {said}", err=True)
