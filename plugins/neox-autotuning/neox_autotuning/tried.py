"""The trials so far, next to what was told of them."""

from __future__ import annotations

from typing import Any

from attrs import asdict, field, frozen

from neox_autotuning.foresight import Foresight
from neox_autotuning.space import Trial
from neox_autotuning.trial import Bench, Result, score
from neox_core.terminal import echo

UNITS = {"latency": "s a step", "throughput": "samples/s", "FLOPS": "FLOPS of a device"}


@frozen
class Tried:
    """Runs trials and says of each what came out. as_json: stdout is for an object at the end, so it says it on stderr.

    lines: said so far. trials: the same for programs.
    """

    bench: Bench
    foresight: Foresight
    as_json: bool
    lines: list[str] = field(factory=list)
    trials: list[dict[str, Any]] = field(factory=list)
    _results: list[Result] = field(factory=list)

    def say(self, line: str) -> None:
        echo(line, err=self.as_json)

    def measure(self, trial: Trial) -> float | None:
        """The score of a trial, None where it failed or is left out. The config as it is (no sets) always runs."""
        told = {"told": self.foresight.value(trial), "told_memory_gib": self.foresight.memory(trial)}
        too_large = self.foresight.too_large(trial) if trial.sets else ""
        if too_large:
            self._keep(f"{trial.name}: left out: {too_large}", {"name": trial.name, "left_out": too_large} | told)
            return None
        result = self.bench.run(trial)
        self._results.append(result)
        line = _line(result, self._results[0])
        self._keep("; ".join([line, *_beside(result, self.foresight, trial)]), asdict(result) | told)
        return score(result)

    def _keep(self, line: str, trial: dict[str, Any]) -> None:
        self.lines.append(line)
        self.trials.append(trial)
        self.say(line)


def _line(result: Result, own: Result) -> str:
    """The row of a trial; `own`: of the config as it is, which the others are compared with."""
    if result.value is None:
        return f"{result.name}: failed: {result.cause.splitlines()[-1].strip()}"
    line = f"{result.name}: {result.value:.4g} {UNITS[result.metric]}"
    if own is result or not own.value:
        return line
    gain = own.value / result.value - 1 if result.metric == "latency" else result.value / own.value - 1
    return f"{line}, {abs(gain):.0%} {'faster' if gain > 0 else 'slower'}"


def _beside(result: Result, foresight: Foresight, trial: Trial) -> list[str]:
    """What a trial took, and what was told of it before it ran."""
    value, gib = foresight.value(trial), foresight.memory(trial)
    told = [] if value is None else [f"{value:.4g} {UNITS[result.metric]}"]
    told += [] if gib is None else [f"{gib:.2f} GiB"]
    taken = [] if result.memory_gib is None else [f"took {result.memory_gib:.2f} GiB"]
    return [*taken, f"told {' and '.join(told)}"] if told else taken
