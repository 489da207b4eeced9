"""Says what a folder of checkpoints is, by the names of its files and the small JSON among them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from neox_gpt.api import saved_run

from neox_core.errors import CheckpointError, NeoxError
from neox_core.hooks.catalog import Catalog
from neox_core.plan.stored.saved import MANIFEST, find_checkpoint, read_stored, step_of
from neox_core.untrusted import short

UNIVERSAL = "**/fp32.pt"


def describe(folder: Path, catalog: Catalog) -> list[str]:
    """What a folder is, then what would become of it. Raises CheckpointError for one that is not there or damaged."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: is not a folder")
    lines = list(_ours(folder, catalog)) or list(_foreign(folder, catalog)) or list(_others(folder))
    return lines or [f"{folder}: nothing that neox, or a format that is installed, recognises"]


def _ours(folder: Path, catalog: Catalog) -> Iterator[str]:
    try:
        found = find_checkpoint(folder)
    except CheckpointError as error:
        if list(folder.glob(f"step-*/{MANIFEST}")):
            raise error
        return
    if found is None:
        return
    _, plan = saved_run(found, catalog)
    [state] = read_stored(found, "state.json")
    progress = state.get("state")
    step = progress.get("step", step_of(found)) if isinstance(progress, dict) else step_of(found)
    yield f"{found}: a checkpoint of neox {short(plan.neox_version)}, at step {short(step)}"
    yield f"continue with its config and `--set load={folder}`, on any number of ranks"


def _foreign(folder: Path, catalog: Catalog) -> Iterator[str]:
    for entry in catalog.registry.entries("checkpoint format"):
        try:
            said = entry.load()().recognises(folder)
        except NeoxError as error:
            yield f"{folder}: {error}"
            continue
        if said is not None:
            yield f"{folder}: {short(said)}"
            yield f"`neox checkpoint import {folder} --format {entry.component.name} --out NEW` makes it one of neox"


def _others(folder: Path) -> Iterator[str]:
    if next(folder.glob(UNIVERSAL), None) is not None:
        yield f"{folder}: a universal checkpoint of DeepSpeed, which does not name GPT-NeoX's layers"
        yield "import the checkpoint that `ds_to_universal` made it from"
