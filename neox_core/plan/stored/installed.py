"""The plan of a stored run with the components of this environment. No import path of the stored file is used."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, fields

from neox_core.config.stores import address_fault, split_address
from neox_core.errors import CheckpointError, ConfigError, NeoxError
from neox_core.files import cache_folder, replacing
from neox_core.hooks.component import path_of
from neox_core.hooks.install import require_modules
from neox_core.plan.runfile import (
    ComponentRef,
    ModelPlan,
    RunPlan,
    StorePlan,
    plan_of,
    require_format,
    unknown,
    with_components,
)
from neox_core.plan.stored.earlier import as_today
from neox_core.plan.stored.remote import Remote, seals_of
from neox_core.plan.stored.saved import RUN, find_checkpoint, read_run
from neox_core.plan.stored.sizes import check_sizes
from neox_core.untrusted import read_object

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog
    from neox_core.hooks.registry import Entry


def saved_run(load: Path | str, catalog: Catalog) -> tuple[Path, RunPlan]:
    """The newest checkpoint in `load`, a run's `save` folder or one checkpoint in it, and the plan that wrote it.

    Of one in a store, everything but the optimizer's files is copied to the user's cache folder first.
    run.json is compared with the manifest before it is read, and its sizes with the weights that there are. A component
    is the one that `catalog` has of the same kind, plugin and name; one that is not installed cannot be loaded. Raises
    CheckpointError.
    """
    checkpoint = find_checkpoint(Path(load)) if split_address(str(load)) is None else _copied(str(load), catalog)
    if checkpoint is None:
        raise CheckpointError(
            f"{load}: no checkpoint here", hint="name the folder that the config calls `save`, or one checkpoint in it"
        )
    plan = installed(read_run(checkpoint), checkpoint / RUN, catalog, CheckpointError)
    check_sizes(checkpoint, plan.model)
    return checkpoint, plan


def _copied(url: str, catalog: Catalog) -> Path | None:
    """A local copy of the newest checkpoint at an address, for commands that train nothing."""
    protocol, place = split_address(url) or ("", "")
    message, hint = address_fault(place)
    if message:
        raise CheckpointError(f"an address of a store {message}", hint=hint)
    entry = catalog.find("store", protocol)
    require_modules(entry)
    remote = Remote(StorePlan(url, offered(entry), str(cache_folder() / "stores" / protocol / place.lstrip("/"))))
    folder = remote.find()
    if folder is None:
        return None
    for other in set(remote.folder.glob("step-*")) - {folder}:
        shutil.rmtree(other, ignore_errors=True)
    with remote.naming():
        for file, seal in seals_of(folder).items():
            if ".optimizer." not in file:
                content = remote.fetch(folder, file, *seal)
                with replacing(folder / file) as new:
                    new.symlink_to(content.name)
    return folder


def stored_plan(path: Path, catalog: Catalog | None = None) -> RunPlan:
    """The plan in a run file that anybody may have written, with the components of this environment.

    catalog: None: load it. Raises ConfigError as `plan.runfile.read_runfile`.
    """
    return installed(as_today(read_object(path, ConfigError)), path, catalog or _catalog(), ConfigError)


def _catalog() -> Catalog:
    from neox_core.hooks.loader import load_plugins

    return load_plugins()


def installed(raw: dict[str, Any], path: Path, catalog: Catalog, error: type[NeoxError]) -> RunPlan:
    """`raw`, which was read from `path`, as a plan with the components that `catalog` has.

    Of a model whose architecture is not installed, it has what all models have in common. Raises `error` for what is
    not a plan.
    """

    def found(component: ComponentRef) -> ComponentRef:
        offers = catalog.registry.offers(component.kind, component.name)
        mine = [offer for offer in offers if offer.plugin.id == component.plugin]
        return evolve(offered(mine[0]), settings=component.settings) if mine else unknown(component)

    require_format(raw, path, error)
    planner, model = _planner(raw, path, catalog, error), raw.get("model")
    if planner is None and isinstance(model, dict):
        common = {each.name for each in fields(ModelPlan)}
        raw = {**raw, "model": {key: value for key, value in model.items() if key in common}}
    plan = plan_of(raw, path, error, planner=planner)
    known: RunPlan = with_components(plan, found)
    return evolve(known, checkpoint=evolve(known.checkpoint, schedules=schedules(catalog)))


def _planner(raw: dict[str, Any], path: Path, catalog: Catalog, error: type[NeoxError]) -> str | None:
    """The planner that this environment has of the architecture that a stored plan names; None: it has none."""
    named = raw.get("architecture")
    name, plugin = (named.get("name"), named.get("plugin")) if isinstance(named, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(plugin, str):
        raise error(f"{path}: not a run file: names no architecture")
    offers = (each for each in catalog.registry.offers("architecture", name) if each.plugin.id == plugin)
    return next((each.require_planner() for each in offers), None)


def offered(entry: Entry) -> ComponentRef:
    """An offer as a plan names it, without settings."""
    component, plugin = entry.component, entry.plugin
    settings = path_of(component.settings) if component.settings is not None else None
    planner = component.planner if entry.definition.plans else None
    return ComponentRef(
        entry.kind, component.name, plugin.id, plugin.version, component.target, settings, planner=planner
    )


def schedules(catalog: Catalog) -> dict[str, ComponentRef]:
    """Every schedule of the learning rate that is installed, by what identifies it."""
    entries = (entry for kind in ("lr schedule", "scheduler") for entry in catalog.registry.entries(kind))
    return {each.identity: each for each in map(offered, entries)}
