"""run.json: all that the training processes need to know, as the host writes it and ranks read it.

The only part of the light zone that the heavy zone reads. The classes of a plan are found here too.
"""

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import asdict

from neox_core.errors import CheckpointError, ConfigError, NeoxError
from neox_core.files import replacing, sha256_of
from neox_core.hooks.component import load_path
from neox_core.plan.component import ComponentRef as ComponentRef
from neox_core.plan.component import components_of as components_of
from neox_core.plan.component import noting as noting
from neox_core.plan.component import unknown as unknown
from neox_core.plan.component import with_components as with_components
from neox_core.plan.plans import FORMAT as FORMAT
from neox_core.plan.plans import BatchPlan as BatchPlan
from neox_core.plan.plans import CheckpointPlan as CheckpointPlan
from neox_core.plan.plans import ClusterPlan as ClusterPlan
from neox_core.plan.plans import DataPlan as DataPlan
from neox_core.plan.plans import DataSource as DataSource
from neox_core.plan.plans import Host as Host
from neox_core.plan.plans import KernelPlan as KernelPlan
from neox_core.plan.plans import ModelPlan as ModelPlan
from neox_core.plan.plans import OptimPlan as OptimPlan
from neox_core.plan.plans import PrecisionPlan as PrecisionPlan
from neox_core.plan.plans import RecomputePlan as RecomputePlan
from neox_core.plan.plans import RunPlan as RunPlan
from neox_core.plan.plans import StorePlan as StorePlan
from neox_core.plan.plans import TrainPlan as TrainPlan
from neox_core.untrusted import parse_object, read_file, strict_converter, structured

if TYPE_CHECKING:
    from cattrs import Converter

DIGEST = "NEOX_RUN_SHA256"
"""In the environment of a rank: the SHA-256 of the run file, from the process that wrote it."""
UNFINISHED = ".unfinished"
"""Next to run.json during a run: the first rank removes it at its end, which also works on a full disk."""
STOPPED = ".stopped"
"""What the first rank renames it to when a signal ended the run before its last step."""


@cache
def _reader(planner: str | None) -> "Converter":
    """Reads a plan whose model is of the class that a planner names; None: of the class that all have in common."""
    converter = strict_converter().copy()
    if planner is not None:
        model = load_path(planner).plan_class
        converter.register_structure_hook_func(
            lambda cls: cls is ModelPlan, lambda values, _: converter.structure(values, model)
        )
    return converter


def _plain(plan: RunPlan) -> dict[str, Any]:
    """Without what a component has beside the fields by which plans compare, such as where its loading is noted.

    `stores` is left out where there are none, so that such a plan is stored as it was before there were any.
    """
    return asdict(plan, filter=lambda attribute, value: bool(attribute.eq) and (attribute.name != "stores" or value))


def to_json(plan: RunPlan) -> str:
    """The text of run.json: keys sorted, so equal plans give equal text."""
    return json.dumps(_plain(plan), indent=1, sort_keys=True) + "\n"


def to_plain(plan: RunPlan) -> dict[str, Any]:
    """What run.json holds, in the order of the fields."""
    return dict(json.loads(json.dumps(_plain(plan))))


def digest(plan: RunPlan) -> str:
    """SHA-256 of the run file, as `sha256sum run.json` prints it; ranks compare it before they build anything."""
    return sha256_of(to_json(plan).encode())


def write_runfile(plan: RunPlan, path: Path) -> None:
    """Write atomically: a reader sees the old file or the new one. Raises ConfigError for a place that takes none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as new:
            new.write_text(to_json(plan), encoding="utf-8")
    except OSError as error:
        said = f"{path}: cannot be written: {error.strerror or error}"
        raise ConfigError(said, hint="make room, or set `save` or --run-dir to a folder that can be written") from error


def read_runfile(path: Path, sha256: str | None) -> RunPlan:
    """The plan in a run file that the process which started this one has written.

    sha256: what that process says the file is. None: anybody may have written the file, so the components are those of
    this environment, see `plan.stored.installed`. Raises ConfigError when the file is missing, is not the one that was
    written, or does not hold a plan of this format.
    """
    if sha256 is None:
        from neox_core.plan.stored.installed import stored_plan

        return stored_plan(path)
    data = read_file(path, ConfigError)
    if sha256_of(data) != sha256:
        said = f"{path}: is not the run file that this process was started with"
        raise ConfigError(said, hint="it was changed since; start the run again with `neox train`")
    raw = parse_object(data, path, ConfigError)
    return plan_of(raw, path, ConfigError, planner=_planner_in(raw))


def receive_plan(raw: dict[str, Any]) -> RunPlan:
    """The plan from the process that has become this one, which gave it to `exec_module`."""
    return _reader(_planner_in(raw)).structure(raw, RunPlan)


def plan_of(raw: dict[str, Any], path: Path, error: type[NeoxError], *, planner: str | None) -> RunPlan:
    """`raw`, which is from `path`, as a plan. planner: of its architecture, by import path.

    Raises `error` for what is not a plan, or has another format.
    """
    require_format(raw, path, error)
    return structured(_reader(planner), raw, RunPlan, f"{path}: not a run file", error)


def require_format(raw: dict[str, Any], path: Path, error: type[NeoxError]) -> None:
    """Raises `error` unless `raw`, which is from `path`, is of the format of a run file."""
    if raw.get("format") != FORMAT:
        raise error(f"{path}: not a run file of format {FORMAT}", hint="start the run with `neox train`")


def optim_of(raw: dict[str, Any], path: Path) -> OptimPlan:
    """The part of a stored plan that is about the optimizer. Raises CheckpointError for what is none."""
    return structured(_reader(None), raw.get("optim"), OptimPlan, f"{path}: not a run file: optim", CheckpointError)


def _planner_in(raw: dict[str, Any]) -> str | None:
    """The content of a file that this environment has written."""
    planner: str | None = raw["architecture"]["planner"]
    return planner
