"""Says what a folder of checkpoints is, by the names of its files and the small JSON among them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attrs import frozen
from neox_gpt.api import saved_run

from neox_core.errors import CheckpointError, NeoxError
from neox_core.hooks.catalog import Catalog
from neox_core.plan.stored.saved import MANIFEST, find_checkpoint, read_stored, step_of
from neox_core.untrusted import short

UNIVERSAL = "**/fp32.pt"


@frozen
class Found:
    """What a folder of checkpoints is. kinds: "neox", names of formats that recognise it, or "universal"; empty: none
    does. checkpoint, step: of neox's newest. lines: the same in words.
    """

    folder: str
    kinds: tuple[str, ...]
    lines: tuple[str, ...]
    checkpoint: str | None = None
    step: int | None = None


def describe(folder: Path, catalog: Catalog) -> Found:
    """What a folder is, then what would become of it. Raises CheckpointError for one that is not there or damaged."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: is not a folder")
    own = _ours(folder, catalog)
    if own is not None:
        return own
    foreign = list(_foreign(folder, catalog)) or list(_others(folder))
    if not foreign:
        return Found(str(folder), (), (f"{folder}: nothing that neox, or a format that is installed, recognises",))
    return Found(
        str(folder), tuple(kind for kind, _ in foreign if kind), tuple(line for _, some in foreign for line in some)
    )


def _ours(folder: Path, catalog: Catalog) -> Found | None:
    try:
        found = find_checkpoint(folder)
    except CheckpointError as error:
        if list(folder.glob(f"step-*/{MANIFEST}")):
            raise error
        return None
    if found is None:
        return None
    _, plan = saved_run(found, catalog)
    [state] = read_stored(found, "state.json")
    progress = state.get("state")
    step = progress.get("step", step_of(found)) if isinstance(progress, dict) else step_of(found)
    lines = (
        f"{found}: a checkpoint of neox {short(plan.neox_version)}, at step {short(step)}",
        f"continue with its config and `--set load={folder}`, on any number of ranks",
    )
    return Found(str(folder), ("neox",), lines, str(found), step if isinstance(step, int) else None)


def _foreign(folder: Path, catalog: Catalog) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(name of the format, "" for one that fails; lines) of each that recognises the folder."""
    for entry in catalog.registry.entries("checkpoint format"):
        try:
            said = entry.load()().recognises(folder)
        except NeoxError as error:
            yield "", (f"{folder}: {error}",)
            continue
        if said is not None:
            how = f"`neox checkpoint import {folder} --format {entry.component.name} --out NEW` makes it one of neox"
            yield entry.component.name, (f"{folder}: {short(said)}", how)


def _others(folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    if next(folder.glob(UNIVERSAL), None) is not None:
        what = f"{folder}: a universal checkpoint of DeepSpeed, which does not name GPT-NeoX's layers"
        yield "universal", (what, "import the checkpoint that `ds_to_universal` made it from")
