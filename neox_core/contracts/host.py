"""The surroundings of a run: launchers and monitors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attrs import define, field, frozen

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.plan.runfile import RunPlan


@frozen
class LaunchCommand:
    """The command of a process that starts the ranks.

    * argv: a tuple of words; no shell interprets it.
    * env: variables that are added to the environment of the host.
    * notes: lines that `--dry-run` shows.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(factory=dict)
    notes: tuple[str, ...] = ()


def launch_fault(command: object) -> str:
    """The fault of what a launcher returned; "" where it has none."""
    if not isinstance(command, LaunchCommand):
        return f"a launcher returns a LaunchCommand, not {command!r}"
    if not isinstance(command.argv, tuple) or not command.argv:
        return f"argv is a tuple of one string or more, not {command.argv!r}"
    if not all(isinstance(word, str) for word in command.argv):
        return f"every word of argv is a string: {command.argv!r}"
    env = command.env
    if not isinstance(env, Mapping) or not all(isinstance(part, str) for pair in env.items() for part in pair):
        return f"env holds strings: {command.env!r}"
    return ""


class Launcher(Protocol):
    """`target(plan: RunPlan, run_file: Path, settings) -> LaunchCommand`; imported on the host, so it is light.

    A pure function: the same plan gives the same command, and the launcher starts and writes nothing. Hosts, ranks and
    the address of the first rank are in `plan.cluster`, a ClusterPlan.

    A component with a `planner`, a light function `planner(device, num_gpus) -> {host: slots}`, tells the hosts where
    the config names no hostfile: those of a scheduler's allocation. {}: this machine. It raises MisfitError.

    The command:

    * names the run file, runs no shell on this host, and repeats no value of the environment, which the ranks inherit:
      it may be secret;
    * runs in a session of its own. The core sends it SIGTERM to stop the ranks; it passes the signal on, once, to each
      rank and not to the rank's workers. A second Ctrl-C kills it;
    * runs until every rank has ended. Exit code 0 means that all succeeded; before one has finished it is an error;
    * stops the other ranks within 30 s when one fails;
    * may write `failure.json` beside run.json about a rank that could not report its failure (killed when memory ran
      out, for example): {"rank": int, "exit_code": int, "message": str, "hint": str, "users_mistake": bool, "log": path
      of its log}. It wins over what ranks wrote;
    * watches the ranks of its machine by `neox_core.heartbeat`, so that a rank that hangs is detected before the 30
      minutes of a collective. Otherwise the run reports that `stall-timeout` has no effect.

    Each rank:

    * is the command `neox_core.interpreter.python("neox_core.run.rank", RUN_FILE)`, which is `python -m` without the
      current folder on the path;
    * has RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, and exits when its parent is
      gone;
    * runs no other run file than the one whose digest is NEOX_RUN_SHA256. The core puts this variable into the
      environment of the command; ranks on other hosts get it from `plan.runfile.digest(plan)`;
    * writes stderr to a log of its own, and stdout too, except for rank 0, whose stdout is the terminal;
    * writes failure.rank<N>.json beside run.json when it fails, if it still can, and exits with a code that is not 0.
    """

    def __call__(self, plan: RunPlan, run_file: Path, settings: Any) -> LaunchCommand: ...


@define(eq=False)
class Progress:
    """How far a run has come. A monitor may read it at any time and from any thread; this does not slow the run.

    * step: optimizer steps handed to the device, which may still be at an earlier one; `reached(step)` sets it.
    * doing: what the run does when it does not train, such as "saving"; otherwise "". `now(doing)` sets it.
    """

    step: int = 0
    doing: str = ""

    def reached(self, step: int) -> None:
        self.step = step

    def now(self, doing: str) -> None:
        self.doing = doing

    @contextmanager
    def during(self, doing: str) -> Iterator[None]:
        """Set `doing` inside the block, and restore it after."""
        before, self.doing = self.doing, doing
        try:
            yield
        finally:
            self.doing = before


@frozen
class RunInfo:
    """What a monitor knows of the run. Steps are optimizer steps. Only `progress` changes during the run."""

    run_dir: Path
    first_step: int
    last_step: int
    num_parameters: int
    num_ranks: int
    tokens_per_step: int
    device: str
    samples_per_step: int
    progress: Progress = field(factory=Progress)


class Monitor(Protocol):
    """`target(run: RunInfo, settings) -> Monitor`; runs in rank 0 and is called at log steps only.

    * To show something between two log steps, it reads `run.progress` in a thread of its own.
    * A resumed run builds it again, in the folder of the first run.
    * It accepts values of any name, nan and inf too, and messages of any text. It does not change the mapping, which
      other monitors get too.
    * It must not stop a run: the core reports its first exception and continues without it. Only an exception in its
      constructor ends the run, before the first step.
    * `monitors` names the monitors of a run. One whose settings class has a property `enabled` is used when that is
      true, named or not: so is `tensorboard: {enabled: true}`, a block that is a setting of the monitor of that name.
    """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record the values of a log step.

        step: finished optimizer steps; several calls may have the same.
        values: scalars by name; docs/monitors.md lists the names.
        """

    def say(self, message: str) -> None:
        """Show a message to people, usually one line: a checkpoint written, a warning, a sample of text."""

    def close(self) -> None:
        """Called once, when the run ends."""


MOST_METRICS = 1000
TOO_MANY = f"a component gives {MOST_METRICS:,} at most to the log"


class Measured(Protocol):
    """What an optimizer, a curriculum, or a module of the model has that measures something for the log.

    The log has each number as `optimizer_<name>`, `curriculum_<name>` or `model_<name>`: its mean over all ranks and
    modules that give one of the name. An objective and a feed-forward return their numbers instead, with the loss.
    """

    def metrics(self) -> Mapping[str, Tensor | float]:
        """At most 1,000 scalars by name, the same names each time.

        Called on every rank at log steps alone, and may wait for the device then. Not collective.
        """
