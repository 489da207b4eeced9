"""What surrounds a run: launchers and monitors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attrs import define, field, frozen

if TYPE_CHECKING:
    from neox_core.plan.runfile import RunPlan


@frozen
class LaunchCommand:
    """A process that starts the ranks. argv is a list and never meets a shell; env is added to the host's own."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(factory=dict)


def launch_fault(command: object) -> str:
    """What is wrong with what a launcher returned; "" where nothing is."""
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

    A pure function: the same plan gives the same command, and nothing is started or written. The command names the run
    file, runs no shell on this host, and repeats no value of the environment, which the ranks inherit: it may be
    secret. Hosts, ranks and the address where they meet are in `plan.cluster`, a ClusterPlan. The core runs the command
    in a session of its own, sends it SIGTERM to stop the ranks in good order (it passes that on, once, to each rank and
    not to the rank's workers), kills it at a second Ctrl-C, and judges by its exit code: 0 when every rank ended well.
    It stays
    until they have: 0 before the first rank has come to its end is an error.

    Each rank is the command `neox_core.interpreter.python("neox_core.run.rank", RUN_FILE)`: that is `python -m`, and
    nothing is imported from the current folder. It has RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set,
    and leaves when its parent is gone. The core puts NEOX_RUN_SHA256 into the environment of the command, and a rank
    that finds it runs no other run file; ranks on other hosts get it from `plan.runfile.digest(plan)`. stdout of rank
    0 is the terminal; stderr of each rank goes to a log of its own (ranks other than 0 send their stdout there too).
    A rank that fails says why in failure.rank<N>.json beside run.json if it still can, and ends with a code that is
    not 0; the command then stops the others within 30 s. Of the ranks that could not say why (killed for want of
    memory, say) the command may: in `failure.json` beside run.json, which counts for more, {"rank": int, "exit_code":
    int, "message": str, "hint": str, "users_mistake": bool, "log": path of its log}. For a
    rank that hangs to be noticed before a collective's 30 minutes, the command watches the ranks of its machine by
    `neox_core.heartbeat`; where it does not, the run says that `stall-timeout` has no effect.
    """

    def __call__(self, plan: RunPlan, run_file: Path, settings: Any) -> LaunchCommand: ...


@define(eq=False)
class Progress:
    """How far a run has come, for a monitor to look at whenever it likes and from any thread; it costs the run nothing.

    step: optimizer steps that were handed to the device, which may still be at an earlier one. doing: what the run does
    when it is not training, such as "saving"; "" otherwise.
    """

    step: int = 0
    doing: str = ""

    def reached(self, step: int) -> None:
        self.step = step

    def now(self, doing: str) -> None:
        self.doing = doing

    @contextmanager
    def during(self, doing: str) -> Iterator[None]:
        """Inside, the run does this; then again what it did before."""
        before, self.doing = self.doing, doing
        try:
            yield
        finally:
            self.doing = before


@frozen
class RunInfo:
    """What a monitor knows of the run. Steps are optimizer steps. `progress` changes; all else stays as it is."""

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
    """`target(run: RunInfo, settings) -> Monitor`; lives in rank 0 and is called at log steps only.

    What it wants to show between two logs it reads from `run.progress`, in a thread of its own.

    It is made anew for a run that is resumed, in the folder of the first. It takes values of any name, nan and inf too,
    leaves the mapping as it is, since other monitors get it too, and takes messages of any text.

    A monitor must not stop a run: the core reports what it raises once, and goes on without it. It may refuse to start:
    what its constructor raises ends the run before the first step.

    `monitors` names the monitors of a run. One whose settings class has a property `enabled` joins when that is true,
    named or not: so does `tensorboard: {enabled: true}`, a block that is a setting of the monitor of that name.
    """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Scalars after `step` finished steps, by name: the glossary of names is in docs/monitors.md."""
        ...

    def say(self, message: str) -> None:
        """A message for people, most often one line: a checkpoint written, a warning, a sample of text."""
        ...

    def close(self) -> None: ...
