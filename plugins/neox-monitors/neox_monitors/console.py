"""The `console` monitor: a live bar in a terminal, plain lines otherwise, and the loss curve at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from rich.console import Console as RichConsole
from rich.console import ConsoleRenderable, Group, RichCast
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from neox_core.contracts.host import RunInfo
from neox_core.terminal import printable

MOST_POINTS = 2000
MEASURED = ("objective_", "feed_forward_", "optimizer_", "curriculum_", "model_")
"""How the names of what components measure begin."""


class Output(RichConsole):
    """One whose reader may go: rich would end the process."""

    def on_broken_pipe(self) -> None:
        """An error, as of any other stream, with which a run switches this monitor off."""
        raise BrokenPipeError("nothing reads the output any more")


class Bar(Progress):
    """A bar that follows the run by itself: its thread looks at `run.progress`, so it moves at every step.

    The newest values have a line of their own, because the bar would have no room beside them.
    """

    def __init__(self, run: RunInfo, console: RichConsole) -> None:
        self.run, self.step, self.values, self.left = run, run.first_step, "", ""
        text = TextColumn("{task.description}", markup=False)
        columns = TextColumn("step"), MofNCompleteColumn(), BarColumn(bar_width=24), text
        # what others print goes above the bar; the standard error is a log
        super().__init__(*columns, console=console, refresh_per_second=4, redirect_stderr=False)
        self.add_task("", total=run.last_step, completed=run.first_step)

    def logged(self, step: int, values: str, left: str) -> None:
        """Show these values from now on."""
        self.step, self.values, self.left = step, values, left

    def get_renderable(self) -> ConsoleRenderable | RichCast | str:
        """As it is when the bar is drawn, several times a second."""
        now = self.run.progress
        text = "  ".join(filter(None, (self.left, now.doing)))
        for task in self.task_ids:
            self.update(task, completed=max(now.step, self.step), description=text)
        lines = [super().get_renderable(), Text(self.values, no_wrap=True, overflow="ellipsis")]
        return Group(*lines[: 2 if self.values else 1])


class Console:
    """Writes to stdout of rank 0. In a terminal a bar shows the step and the newest values, below other lines."""

    def __init__(self, run: RunInfo, settings: None) -> None:
        self.run = run
        self.train: list[tuple[float, float]] = []
        self.valid: list[tuple[float, float]] = []
        self.latest = run.first_step
        self.first_log: tuple[float, int] | None = None  # (time, step), for the time left
        self.console = Output(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self.bar: Bar | None = None
        self.say(
            f"{run.num_parameters / 1e6:.2f} M parameters on {run.num_ranks} {run.device} "
            f"rank{'s' if run.num_ranks > 1 else ''}, {run.tokens_per_step:,} tokens a step, "
            f"steps {run.first_step + 1} to {run.last_step}"
        )
        if self.console.is_terminal:
            self.bar = Bar(run, self.console)
            self.bar.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        startup = {name: value for name, value in values.items() if name.startswith("startup_")}
        if startup:
            self.say(describe_startup(startup))
        if "loss" not in values:
            self._evaluated(step, values)
            return
        self.latest = step
        self.train.append((step, values["loss"]))
        if len(self.train) > MOST_POINTS:
            del self.train[1::2]
        text, left = describe(values), self._time_left(step, values)
        if self.bar is None:
            self.say("  ".join(filter(None, (f"step {step}/{self.run.last_step}", text, left))))
        else:
            self.bar.logged(step, text, left)

    def say(self, message: str) -> None:
        self.console.print(printable(message), soft_wrap=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
        if self.latest == self.run.last_step and len(self.train) > 1:
            from neox_monitors.curve import draw  # by plotext, which the start of a run need not wait for

            self.say("loss by step" + (" (o: validation)" if self.valid else ""))
            for line in draw(self.train, self.valid):
                self.say(line)

    def _evaluated(self, step: int, values: Mapping[str, float]) -> None:
        if "rewound_from" in values:
            return  # the run says it in words
        for name, value in values.items():
            what = name.removesuffix("_loss")
            perplexity = values.get(f"{what}_perplexity")
            if name == "valid_loss":
                self.valid.append((step, value))
            if name.endswith("_loss") and perplexity is not None:
                self.say(f"step {step}  {what} loss {value:.4f}, perplexity {perplexity:.4g}")
            elif not name.startswith("startup_") and f"{name.removesuffix('_perplexity')}_loss" not in values:
                self.say(f"step {step}  {name} {value:.6g}")

    def _time_left(self, step: int, values: Mapping[str, float]) -> str:
        """By the clock since the first log, so that evaluations and checkpoints count."""
        left, now = self.run.last_step - step, time.monotonic()
        if left == 0:
            return ""
        if self.first_log is None:
            self.first_log = (now, step)
            return f"{clock(left * values['step_s'])} left"
        began, first = self.first_log
        return f"{clock(left * (now - began) / (step - first))} left" if step > first else ""


def describe(values: Mapping[str, float]) -> str:
    """The values of a log step in one line."""
    parts = [f"loss {values['loss']:.4f}", f"lr {values['lr']:.2e}"]
    if "grad_norm" in values:
        parts.append(f"grad {values['grad_norm']:.2f}")
    parts += [f"{values['tokens_per_s']:,.0f} tok/s", f"{values['step_s'] * 1000:.0f} ms"]
    if "mfu" in values:
        parts.append(f"mfu {values['mfu']:.0%}")
    parts.append(f"{values['memory_gib']:.2f} GiB")
    if values["skipped_steps"]:
        parts.append(f"{values['skipped_steps']:.0f} skipped")
    if values["data_wait_s"] > 0.01 * values["step_s"]:
        parts.append(f"data wait {values['data_wait_s'] * 1000:.0f} ms")
    parts += [f"{name} {value:.4g}" for name, value in values.items() if name.startswith(MEASURED)]
    return "  ".join(parts)


def describe_startup(values: Mapping[str, float]) -> str:
    """`startup_<part>_s` as one line, the total first."""
    names = {name.removeprefix("startup_").removesuffix("_s").replace("_", " "): s for name, s in values.items()}
    total = names.pop("total", sum(names.values()))
    return f"start-up {total:.1f} s: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in names.items())


def clock(seconds: float) -> str:
    """49 -> "49s", 125 -> "2m05s", 7260 -> "2h01m"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
