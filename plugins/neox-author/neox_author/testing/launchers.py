"""`check_launcher`: the clauses of `contracts.Launcher` that can be seen without starting ranks."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from neox_author.testing.clauses import check_light, clauses, hold
from neox_author.testing.plans import example_plan
from neox_author.testing.plugins import build
from neox_core.contracts.host import LaunchCommand, launch_fault
from neox_core.plan.runfile import RunPlan, digest, write_runfile

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "fish", "ksh"})
SECRET = "neox-secret-9f1c"  # noqa: S105  planted to see whether it gets out


@clauses
def check_launcher(catalog: Catalog, name: str, plan: RunPlan | None = None, **settings: Any) -> LaunchCommand:
    """Check that launcher `name` gives a command as the contract asks, and return the command.

    plan: one that the launcher accepts; by default two ranks on this machine. Raises AssertionError with the clause
    that does not hold.
    """
    entry = catalog.find("launcher", name)
    check_light(entry.component.target)
    launch, values = entry.load(), build(entry, **settings)
    with tempfile.TemporaryDirectory() as folder:
        run_file = Path(folder) / "run.json"
        plan = example_plan(Path(folder)) if plan is None else plan
        write_runfile(plan, run_file)
        before = _snapshot(Path(folder))
        os.environ["NEOX_API_KEY"] = SECRET
        given = dict(os.environ), Path.cwd(), digest(plan)
        try:
            with _nothing_starts():
                first: LaunchCommand = launch(plan, run_file, values)
                second = launch(plan, run_file, values)
            same = (dict(os.environ), Path.cwd(), digest(plan)) == given
            hold(same, "a launcher leaves os.environ, the current folder and the plan as they are")
        finally:
            del os.environ["NEOX_API_KEY"]
        hold(_snapshot(Path(folder)) == before, "a launcher writes nothing: it only says what to run")
        _check_command(first, str(run_file))
        hold(first == second, "the same plan gives the same command, twice")
    return first


@contextmanager
def _nothing_starts() -> Iterator[None]:
    def refuse(*args: Any, **named: Any) -> Any:
        given = next((each for each in args if isinstance(each, str | list | tuple)), "a process")
        raise AssertionError(f"a launcher starts nothing: it only says what to run; it starts {given}")

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(subprocess.Popen, "__init__", refuse))
        for name in ("fork", "system", "posix_spawn"):
            stack.enter_context(mock.patch.object(os, name, refuse))
        yield


def _check_command(command: LaunchCommand, run_file: str) -> None:
    fault = launch_fault(command)
    hold(not fault, fault)
    argv = command.argv
    program = next((word for word in argv if Path(word).name != "env" and "=" not in word), "")
    hold(Path(program).name not in SHELLS, f"no shell between the core and the ranks: {argv!r}")
    hold(run_file not in argv[0], f"argv is a tuple of words, and the first is the program: {argv!r}")
    hold(any(run_file in word for word in argv), f"the command is told of the run file: {argv!r}")
    lines = isinstance(command.notes, tuple) and all(isinstance(each, str) for each in command.notes)
    hold(lines, f"notes is a tuple of lines, not {command.notes!r}")
    said = " ".join([*argv, *command.env.values(), *command.notes])
    hold(SECRET not in said, "no secret of the environment in argv, env or notes: the ranks inherit the environment")


def _snapshot(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() if each.is_file() else b"" for each in folder.rglob("*")}
