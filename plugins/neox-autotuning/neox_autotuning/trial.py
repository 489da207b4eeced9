"""One trial: a short run in separate processes, and its result."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from attrs import asdict, frozen

from neox_autotuning.settings import AutotuningBlock
from neox_autotuning.space import Trial
from neox_core.errors import ConfigError
from neox_core.interpreter import python

STOPPED = 130
SAID = 12
"""Number of lines of output that are kept of a failed trial."""
# A trial does not save, load or evaluate, is not started again, and writes only its metrics.
WITHOUT = (
    "save",
    "save_interval",
    "extra_save_iters",
    "keep_last_n_checkpoints",
    "load",
    "finetune",
    "max_restarts",
    "sample_prompt",
    "tensorboard",
    "tensorboard_dir",
    "csv_monitor",
    "wandb",
    "comet",
    "autotuning",
)


@frozen
class Result:
    """The result of a trial. value: its metric, None where it failed. cause: the last output of a failed trial.

    steps: the first and the last measured step. memory_gib: the most that rank 0 took, as a run reports it.
    """

    name: str
    sets: Mapping[str, Any]
    metric: str
    steps: tuple[int, int]
    value: float | None
    cause: str = ""
    memory_gib: float | None = None


class SearchStoppedError(Exception):
    """The user stopped a trial, and so the search."""


@frozen
class Bench:
    """Where trials run. files, sets: of the config; written: its top-level keys, with `_`. folder: of the results.

    notes: the folder of the trials' settings and commands.
    """

    files: Sequence[Path]
    sets: Sequence[str]
    written: frozenset[str]
    block: AutotuningBlock
    folder: Path
    notes: Path

    def run(self, trial: Trial) -> Result:
        """Run a trial, or read its earlier result. Raises SearchStoppedError after Ctrl-C."""
        folder = self.folder / trial.name
        kept = None if self.block.overwrite else self._read(folder, trial)
        if kept is not None:
            return kept
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        command = self.command(trial, folder)
        _write(self.notes / f"{trial.name}.json", {"sets": trial.sets, "command": command})
        with (folder / "output.log").open("wb") as log:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        if code in (STOPPED, -2):
            raise SearchStoppedError(trial.name)
        result = self._judge(trial, folder, code)
        _write(folder / "result.json", asdict(result))
        return result

    def command(self, trial: Trial, folder: Path) -> list[str]:
        """The command line of a trial, which a user can run again."""
        changed: dict[str, Any] = {key: None for key in WITHOUT if key in self.written}
        changed |= {"exit_interval": self.block.end_profile_step, "log_interval": 1, "eval_iters": 0}
        changed |= {"monitors": ["jsonl"], **trial.sets}
        sets = [*self.sets, *as_sets(changed)]
        files = [str(file) for file in self.files]
        run_dir = ["--run-dir", str(folder)]
        return [*python("neox_core", "train"), *files, *_flags(sets), *run_dir]

    def _read(self, folder: Path, trial: Trial) -> Result | None:
        """The earlier result of the same trial, with the same metric over the same steps."""
        try:
            known = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            result = Result(**{**known, "steps": tuple(known["steps"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        asked = dict(trial.sets), self.block.metric, self._steps
        return result if (result.sets, result.metric, result.steps) == asked else None

    @property
    def _steps(self) -> tuple[int, int]:
        return self.block.start_profile_step, self.block.end_profile_step

    def _judge(self, trial: Trial, folder: Path, code: int) -> Result:
        value = measured(folder / "metrics.jsonl", self.block) if code == 0 else None
        if value is not None:
            taken = _rows(folder / "metrics.jsonl", self.block)[-1].get("memory_gib")
            return Result(trial.name, dict(trial.sets), self.block.metric, self._steps, value, memory_gib=taken)
        last = (folder / "output.log").read_text(encoding="utf-8", errors="replace").splitlines()[-SAID:]
        cause = "\n".join(last) if code else f"no step from {self.block.start_profile_step} on was measured"
        said = cause or f"exit code {code}"
        return Result(trial.name, dict(trial.sets), self.block.metric, self._steps, None, said)


def measured(metrics: Path, block: AutotuningBlock) -> float | None:
    """The metric of a run, by the median of its measured steps in metrics.jsonl; None where one of them is missing.

    The median ignores single steps that are slow because of other work on the machine.
    """
    try:
        rows = _rows(metrics, block)
        seconds = median(row["step_s"] for row in rows)
        plan = json.loads((metrics.parent / "run.json").read_text(encoding="utf-8"))
        if block.metric == "latency":
            return float(seconds)
        if block.metric == "throughput":
            return float(plan["batch"]["train_batch"] / seconds)
        return float(median(row["tflops"] for row in rows) * 1e12)
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return None


def _rows(metrics: Path, block: AutotuningBlock) -> list[dict[str, float]]:
    """What metrics.jsonl says of each measured step."""
    steps: dict[int, dict[str, float]] = {}
    for line in metrics.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        steps.setdefault(record["step"], {}).update(record)
    return [steps[step] for step in range(block.start_profile_step, block.end_profile_step + 1)]


def score(result: Result) -> float | None:
    """A score that is larger for better results."""
    return -result.value if result.value is not None and result.metric == "latency" else result.value


def as_sets(values: Mapping[str, Any]) -> list[str]:
    """The arguments of `--set`: JSON is YAML in one line."""
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def _flags(sets: Sequence[str]) -> list[str]:
    last = {each.partition("=")[0].replace("-", "_"): each for each in sets}
    return [part for each in last.values() for part in ("--set", each)]


def _write(path: Path, content: Any) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
