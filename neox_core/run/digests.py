"""Checks, before anything is built, that all ranks have the same plan and the same software."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from neox_core.errors import PluginError, RankError
from neox_core.hooks.component import load_path
from neox_core.plan.runfile import RunPlan, digest

if TYPE_CHECKING:
    from torch.distributed import Store

LIBRARIES = ("torch", "neox-core")


def describe(plan: RunPlan, libraries: Sequence[str] = ()) -> dict[str, str]:
    """The values that must be the same on every rank, by name. libraries: of the engine."""
    software = {name: _version(name) for name in (*LIBRARIES, *libraries, *sorted(plan.plugins))}
    run = {"the run file (SHA-256)": digest(plan), "python": platform.python_version()}
    return run | software | _read_by_kernels(plan)


def _read_by_kernels(plan: RunPlan) -> dict[str, str]:
    """What the kernels that a run may use read on this host; one that cannot be imported is reported when chosen."""
    found: dict[str, set[str]] = {}
    for offer in (each for kernel in plan.model.kernels for each in kernel.offers):
        with suppress(PluginError), offer.blamed():
            ask = getattr(load_path(offer.target), "digest_here", None)
            if ask is not None:
                found.setdefault(f"what kernels of {offer.plugin} read here (SHA-256)", set()).add(str(ask()))
    return {name: " ".join(sorted(digests)) for name, digests in found.items()}


def compare(store: Store, mine: dict[str, str], rank: int, world_size: int) -> None:
    """Compare `mine` over all ranks through the rendezvous store, so no collective can hang on a difference.

    Raises RankError on every rank, which names the ranks that differ from rank 0 and the differences.
    """
    store.set(f"agree/{rank}", json.dumps(mine))
    if rank == 0:
        differences = []
        for other in range(1, world_size):
            theirs = json.loads(store.get(f"agree/{other}"))
            differences += [
                f"rank {other}: {name} is {theirs.get(name, 'missing')}, on rank 0 it is {mine.get(name, 'missing')}"
                for name in sorted(mine.keys() | theirs.keys())
                if mine.get(name) != theirs.get(name)
            ]
        store.set("agree/verdict", json.dumps(differences))
    differences = json.loads(store.get("agree/verdict"))
    if differences:
        store.set(f"agree/read/{rank}", "")
        if rank == 0:  # the store may live in this process, and the other ranks still have to read the reason
            store.wait([f"agree/read/{other}" for other in range(world_size)])
        said = "the ranks have different plans or software:\n  " + "\n  ".join(differences)
        hint = "put the same run file, versions and tables in the cache folder (tiles.csv) on every host"
        raise RankError(said, hint=hint)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
