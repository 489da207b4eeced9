"""The checkpoint that a run starts from: in a local folder, or in a store."""

from collections.abc import Mapping
from pathlib import Path

from neox_core.config.stores import split_address
from neox_core.contracts.store import StoredCheckpoints
from neox_core.hooks.component import load_path
from neox_core.plan.runfile import CheckpointPlan, StorePlan
from neox_core.plan.stored.saved import find_checkpoint


def open_store(plan: StorePlan) -> StoredCheckpoints:
    """The checkpoints in a store. Raises PluginError for a component that is not installed, or has no planner."""
    store = plan.component
    if store.planner is None:
        store.load()  # says where it is not installed
        raise store.fault("its Component names no planner")
    with store.blamed():
        checkpoints: StoredCheckpoints = load_path(store.planner)(plan)
    return checkpoints


def open_stores(plan: CheckpointPlan) -> dict[str, StoredCheckpoints]:
    """The stores that `save` and `load` name, by address."""
    return {each.url: open_store(each) for each in plan.stores}


def checkpoint_to_load(plan: CheckpointPlan, stores: Mapping[str, StoredCheckpoints]) -> tuple[Path | None, bool]:
    """The checkpoint that a run starts from, None for a fresh start, and whether the run itself has written it.

    With `--resume auto` the run's own checkpoints win over `load`. Raises CheckpointError as `find_checkpoint`.
    stores: from `open_stores`; of a checkpoint there, it is the folder of `StoredCheckpoints.find`.
    """
    apart = None not in (plan.save, plan.load) and _resolved(str(plan.load)) != _resolved(str(plan.save))
    own = find_at(plan.save, stores) if plan.resume == "auto" and apart else None
    if own is not None:
        return own, True
    return find_at(plan.load, stores), False


def find_at(path: str | None, stores: Mapping[str, StoredCheckpoints]) -> Path | None:
    """The checkpoint in a local folder or at an address."""
    if path is None or path in stores:
        return None if path is None else stores[path].find()
    return find_checkpoint(Path(path))


def _resolved(path: str) -> str | Path:
    return path if split_address(path) else Path(path).resolve()
