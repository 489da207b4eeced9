"""The plan of a stored run with the components of this environment. No import path of the stored file is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, fields

from neox_core.errors import ConfigError, NeoxError
from neox_core.plan.component import offered
from neox_core.plan.runfile import ComponentRef, ModelPlan, RunPlan, plan_of, require_format, unknown, with_components
from neox_core.plan.stored.earlier import as_today
from neox_core.untrusted import read_object

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog


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

    Of a model whose architecture is not installed, it has what all models share. Raises `error` for what is not a plan.
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


def schedules(catalog: Catalog) -> dict[str, ComponentRef]:
    """Every schedule of the learning rate that is installed, by what identifies it."""
    entries = (entry for kind in ("lr schedule", "scheduler") for entry in catalog.registry.entries(kind))
    return {each.identity: each for each in map(offered, entries)}
