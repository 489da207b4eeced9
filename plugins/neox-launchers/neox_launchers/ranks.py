"""The ranks of a machine: what watches them can ask, and a run's only rank, which is started without torch."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Protocol

from attrs import define

from neox_core.interpreter import python
from neox_launchers.failure import Exit
from neox_launchers.stall import Rank


class Agent(Protocol):
    """Starts the ranks of a machine, and ends them all once one has failed."""

    def exits(self) -> list[Exit]:
        """Start the ranks and wait for their end. Returns those that did not end well."""

    def failed(self) -> bool:
        """Whether a rank has failed; also while the others are being ended, which may take SHUTDOWN_S."""

    def over(self) -> bool:
        """Whether all of its ranks have ended well."""

    def ranks(self) -> list[Rank]:
        """Those that were started."""


def command(run_file: Path) -> tuple[str, ...]:
    """Of a rank; who it is stands in its environment."""
    return python("neox_core.run.rank", str(run_file))


def new_log(folder: Path, rank: int) -> Path:
    """Where a rank's errors go. The log of the run before is kept as rank<N>.log.1."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"rank{rank}.log"
    if file.exists():
        file.replace(file.with_name(f"{file.name}.1"))
    return file


@define
class OneRank:
    """The only rank of a run, in a session of its own: what a terminal sends reaches it by the agent alone."""

    run_file: Path
    log_dir: Path
    address: str
    _process: subprocess.Popen[bytes] | None = None

    def exits(self) -> list[Exit]:
        place = {"MASTER_ADDR": self.address, "MASTER_PORT": "0"}  # one that is free when the rank needs it
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        with new_log(self.log_dir, 0).open("wb") as log:
            self._process = subprocess.Popen(
                command(self.run_file), env={**os.environ, **alone, **place}, stderr=log, start_new_session=True
            )
        code = self._process.wait()
        return [Exit(0, code, time.time())] if code else []

    def failed(self) -> bool:
        return self._process is not None and self._process.returncode not in (None, 0)

    def over(self) -> bool:
        return self._process is not None and self._process.returncode == 0

    def ranks(self) -> list[Rank]:
        return [] if self._process is None else [Rank(0, 0, self._process.pid)]
