"""run.json of a run, which anybody may have written: values by path, of the type that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from neox_core.errors import UsageError
from neox_core.plan.stored.saved import MANIFEST, RUN, read_run

T = TypeVar("T")


def require_run(folder: Path) -> Mapping[str, Any]:
    """What the run.json of a run's folder holds. Raises UsageError for another folder or file."""
    if not (folder / RUN).is_file():
        hint = "name the folder that `neox train` wrote, which has a run.json; `neox runs` lists those below a folder"
        raise UsageError(f"{folder}: not the folder of a run", hint=hint)
    if (folder / MANIFEST).is_file():
        hint = f"name the folder of its run, such as {folder.parent}"
        raise UsageError(f"{folder}: a checkpoint, not the folder of a run", hint=hint)
    plan = read_run(folder, UsageError)
    if plan.get("format") != 1 or not isinstance(plan.get("train"), dict):
        raise UsageError(f"{folder / RUN}: not a run file")
    return plan


def at(plan: Mapping[str, Any], path: str, kind: type[T]) -> T | None:
    """The value of a dotted path; None where there is none of this type."""
    value: Any = plan
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if type(value) is kind else None


def world_size(plan: Mapping[str, Any]) -> int:
    """The number of ranks."""
    hosts = at(plan, "cluster.hosts", list) or []
    slots = [each.get("slots") for each in hosts if isinstance(each, dict)]
    return sum(each for each in slots if type(each) is int)
