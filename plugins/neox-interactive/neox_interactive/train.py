"""`neox_core.train`: the run of `neox train`, in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from neox_core import errors
from neox_core.errors import NeoxError, RankError, UsageError
from neox_core.interpreter import python
from neox_core.plan.resolve import prepare_run
from neox_core.terminal import echo
from neox_interactive.arguments import path_of
from neox_interactive.load import load
from neox_interactive.metrics import metrics

if TYPE_CHECKING:
    import pandas as pd

    from neox_interactive.model import Model

STOPPED = 130
"""The exit code of a run that was interrupted, after it has saved."""
KEPT_LINES = 400

Paths = str | Path | Sequence[str | Path]


@frozen
class Run:
    """A run that has ended. folder: of run.json, logs and metrics. finished: False where it was interrupted."""

    folder: Path
    finished: bool = True

    def metrics(self) -> pd.DataFrame:
        """As `neox_core.metrics`."""
        return metrics(self.folder)

    def load(self, device: str = "cpu") -> Model:
        """As `neox_core.load` of what the run has saved."""
        return load(self.folder, device)


def train(
    config: Paths | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    run_dir: str | Path | None = None,
    resume: str | None = None,
) -> Run:
    """Train as `neox train` does, show what it prints, and return when it ends.

    config: a file, several that are one config, or the keys themselves. overrides: keys to set on top, as `--set` does.
    run_dir, resume: as the options of the command. An interrupt stops the run after a step and saves, a second one
    kills it. Raises what the command would report: ConfigError, with all problems, before anything is started; the
    error of a rank after it.
    """
    if not isinstance(overrides, Mapping | None):
        raise UsageError(f"train: overrides are keys with values, not {overrides!r:.80}", hint='such as {"seed": 7}')
    with tempfile.TemporaryDirectory() as place:
        files = _files(config, Path(place))
        sets = [f"{key}={_text(value)}" for key, value in (overrides or {}).items()]
        folder = None if run_dir is None else path_of(run_dir, "train: run_dir")
        plan = prepare_run(files, sets, resume=resume, folder=folder, start=False).plan
        options = [word for each in sets for word in ("--set", each)]
        options += ["--run-dir", str(plan.run_dir)] + ([] if resume is None else ["--resume", resume])
        code = _followed(python("neox_core", "train", *map(str, files), *options))
    return Run(Path(plan.run_dir), finished=code == 0)


def _files(config: Paths | Mapping[str, Any], place: Path) -> list[Path]:
    if isinstance(config, Mapping):
        file = place / "notebook.json"
        file.write_text(_text(config), encoding="utf-8")
        return [file]
    files = config if isinstance(config, Sequence) and not isinstance(config, str) else [config]
    if not files:
        raise UsageError("train: the list of configs is empty", hint="name one, or give the keys themselves")
    return [path_of(file, "train: a config") for file in files]


def _text(value: Any) -> str:
    """The value as JSON, which is YAML too."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"a value cannot be written to a config: {error}", hint="use what JSON has") from error


def _followed(command: Sequence[str]) -> int:
    """Run a command, show its output, and return its exit code. Raises the error that it reports."""
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    asked = False
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        output = process.stdout
        while output is not None:
            try:
                line = output.readline()
                if not line:
                    break
                lines.append(line.rstrip("\n"))
                echo(lines[-1])
            except KeyboardInterrupt:
                asked = True
                process.send_signal(signal.SIGINT)
        code = process.wait()
    if code not in (0, STOPPED) and not asked:
        raise _reported(lines, code)
    sys.stdout.flush()
    return code


def _reported(lines: Sequence[str], code: int) -> NeoxError:
    """The error at the end of the output of a command."""
    said = list(lines)
    first = max((at for at, line in enumerate(said) if line.startswith("error: ")), default=None)
    message = "the run ended with exit code " + str(code) if first is None else said[first].removeprefix("error: ")
    kinds = (errors.ConfigError, errors.PluginError, errors.DataError, errors.CheckpointError, RankError)
    kind = next((each for each in kinds if each.exit_code == code), RankError)
    rest = [] if first is None else [line.removeprefix("  ") for line in said[first + 1 :]]
    return kind(message, hint="\n".join(rest))
