"""The plan of a stored run with the components of this environment. No import path of the stored file is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve

from neox_core.errors import CheckpointError
from neox_core.hooks.component import path_of
from neox_core.plan.runfile import ComponentRef, RunPlan, plan_of, unknown, with_components
from neox_core.plan.saved import RUN, find_checkpoint, read_run

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog
    from neox_core.hooks.registry import Entry


def saved_run(load: Path, catalog: Catalog) -> tuple[Path, RunPlan]:
    """The newest checkpoint in `load`, a run's `save` folder or one checkpoint in it, and the plan that wrote it.

    run.json is compared with the manifest before it is read. A component is the one that `catalog` has of the same
    kind, plugin and name; one that is not installed cannot be loaded. Raises CheckpointError.
    """
    checkpoint = find_checkpoint(load)
    if checkpoint is None:
        raise CheckpointError(
            f"{load}: no checkpoint here", hint="name the folder that the config calls `save`, or one checkpoint in it"
        )
    return checkpoint, installed(plan_of(read_run(checkpoint), checkpoint / RUN, CheckpointError), catalog)


def installed_here(plan: RunPlan) -> RunPlan:
    """`installed`, for a process that has no catalogue."""
    from neox_core.hooks.loader import load_plugins

    return installed(plan, load_plugins())


def installed(plan: RunPlan, catalog: Catalog) -> RunPlan:
    """`plan`, which was read from a file, with the components that `catalog` has."""

    def found(component: ComponentRef) -> ComponentRef:
        offers = catalog.registry.offers(component.kind, component.name)
        mine = [offer for offer in offers if offer.plugin.id == component.plugin]
        return evolve(offered(mine[0]), settings=component.settings) if mine else unknown(component)

    plan = with_components(plan, found)
    return evolve(plan, checkpoint=evolve(plan.checkpoint, schedules=schedules(catalog)))


def offered(entry: Entry) -> ComponentRef:
    """An offer as a plan names it, without settings."""
    component, plugin = entry.component, entry.plugin
    settings = path_of(component.settings) if component.settings is not None else None
    return ComponentRef(entry.kind, component.name, plugin.id, plugin.version, component.target, settings)


def schedules(catalog: Catalog) -> dict[str, ComponentRef]:
    """Every schedule of the learning rate that is installed, by what identifies it."""
    entries = (entry for kind in ("lr schedule", "scheduler") for entry in catalog.registry.entries(kind))
    return {each.identity: each for each in map(offered, entries)}
