"""`check_launcher`: the clauses of `contracts.Launcher` that can be seen without starting ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_core.contracts.host import LaunchCommand, launch_fault
from neox_core.hooks.guard import HEAVY
from neox_core.plan.runfile import RunPlan, write_runfile
from neox_core.testing.plans import example_plan

if TYPE_CHECKING:
    from neox_core.hooks.loader import Catalog

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "fish", "ksh"})
SECRET = "neox-secret-9f1c"  # noqa: S105  planted to see whether it gets out


def check_launcher(catalog: Catalog, name: str, plan: RunPlan | None = None, **settings: Any) -> LaunchCommand:
    """Check that launcher `name` gives a command as the contract asks, and return the command.

    plan: one that the launcher accepts; by default two ranks on this machine. Raises AssertionError with the clause
    that does not hold.
    """
    from neox_core.testing.plugins import build

    entry = catalog.find("launcher", name)
    _check_light(entry.component.target)
    launch, values = entry.load(), build(entry, **settings)
    with tempfile.TemporaryDirectory() as folder:
        run_file = Path(folder) / "run.json"
        plan = example_plan(Path(folder)) if plan is None else plan
        write_runfile(plan, run_file)
        before = _snapshot(Path(folder))
        os.environ["NEOX_API_KEY"] = SECRET
        try:
            first, second = launch(plan, run_file, values), launch(plan, run_file, values)
        finally:
            del os.environ["NEOX_API_KEY"]
        _clause(_snapshot(Path(folder)) == before, "a launcher writes nothing: it only says what to run")
        _check_command(first, str(run_file))
        _clause(first == second, "the same plan gives the same command, twice")
    return first


def _check_command(command: LaunchCommand, run_file: str) -> None:
    fault = launch_fault(command)
    _clause(not fault, fault)
    argv = command.argv
    program = Path(argv[0]).name
    shell = program in SHELLS and any(word.startswith("-") and word.endswith("c") for word in argv[1:])
    _clause(not shell, f"no shell between the core and the ranks: {argv!r}")
    _clause(any(run_file in word for word in argv), f"the command is told of the run file: {argv!r}")
    said = " ".join([*argv, *command.env.values()])
    _clause(SECRET not in said, "no secret of the environment in argv or env: the ranks inherit the environment")


def _check_light(target: str) -> None:
    module = target.partition(":")[0]
    script = f"import json, sys, {module}; print(json.dumps([*sys.modules]))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    _clause(run.returncode == 0, f"{module} can be imported: {run.stderr.strip()}")
    heavy = HEAVY.intersection(json.loads(run.stdout.splitlines()[-1]))
    _clause(not heavy, f"{module} is imported on the host and must be light; it imports {', '.join(sorted(heavy))}")


def _snapshot(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _clause(holds: bool, clause: str) -> None:
    if not holds:
        raise AssertionError(clause)
