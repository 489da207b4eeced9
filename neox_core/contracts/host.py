"""What surrounds a run: launchers and monitors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attrs import field, frozen

if TYPE_CHECKING:
    from neox_core.plan.runfile import RunPlan


@frozen
class LaunchCommand:
    """A process that starts the ranks. argv is a list and never meets a shell; env is added to the host's own."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(factory=dict)


class Launcher(Protocol):
    """`target(plan: RunPlan, run_file: Path, settings) -> LaunchCommand`; imported on the host, so it is light.

    The core runs the command, passes signals on, and judges by its exit code: 0 when every rank ended well. Each rank
    is `python -m neox_core.train.rank RUN_FILE` with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
    Of a rank that fails the command writes `failure.json` beside run.json: {"rank": int, "exit_code": int,
    "message": str}; the output of each rank goes to `logs/rank<N>.log`, that of rank 0 to the terminal as well.
    """

    def __call__(self, plan: RunPlan, run_file: Path, settings: Any) -> LaunchCommand: ...


@frozen
class RunInfo:
    """What a monitor knows of the run. Steps are optimizer steps."""

    run_dir: Path
    first_step: int
    last_step: int
    num_parameters: int
    num_ranks: int
    tokens_per_step: int
    device: str


class Monitor(Protocol):
    """`target(run: RunInfo, settings) -> Monitor`; lives in rank 0 and is called at log steps only.

    A monitor must not stop a run: the core reports what it raises once, and goes on without it.
    """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Scalars after `step` finished steps, by name: the glossary of names is in docs/monitors.md."""
        ...

    def say(self, message: str) -> None:
        """One line for people: a checkpoint written, a warning."""
        ...

    def close(self) -> None: ...
