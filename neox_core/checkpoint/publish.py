"""Makes a checkpoint of what the ranks have written: the folder appears complete and verified, or not at all.

Without torch, so that a process which only writes files imports none.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from attrs import frozen

from neox_core.checkpoint import manifest as form
from neox_core.checkpoint.seal import Seal, write_bytes
from neox_core.errors import CheckpointError
from neox_core.files import replacing
from neox_core.plan.stored import saved
from neox_core.plan.stored.saved import LATEST, latest_name, latest_text, rank_note, sealed, step_folders

if TYPE_CHECKING:
    from neox_core.contracts.store import StoredCheckpoints

_Pieces = dict[str, dict[tuple[str, str, str], list[str]]]
"""By the part that would hold them, and by tensor."""


@frozen
class Ending:
    """What makes a checkpoint of the folder `written`, when all ranks have written there; it holds what JSON holds.

    final: its folder then, where it is a local one. run, state: contents of the files. keep: of earlier checkpoints.
    """

    written: str
    final: str
    step: int
    world_size: int
    run: str
    state: dict[str, Any]
    optimizer: bool
    rng: bool
    keep: int | None


def complete(ending: Ending, store: StoredCheckpoints | None) -> None:
    """Make a checkpoint of what all ranks have written. One rank calls it. Raises CheckpointError."""
    written, final = Path(ending.written), Path(ending.final)
    if store is not None:
        for rank in range(ending.world_size):
            store.collect(written, rank)
    args = written, ending.step, ending.world_size, ending.run, ending.state
    write_manifest(*args, optimizer=ending.optimizer, rng=ending.rng)
    if store is not None:
        store.publish(written, ending.keep)
        return
    publish(written, final)
    if ending.keep is not None:
        prune(final.parent, ending.keep, final)


def write_note(folder: Path, rank: int, files: Mapping[str, Seal], note: Mapping[str, Any]) -> None:
    """Tell the rank that writes the manifest what this one has written; the file is whole or absent."""
    seals = {file: [seal.size, seal.sha256] for file, seal in files.items()}
    with replacing(rank_note(folder, rank)) as new:
        write_bytes(new, json.dumps({"files": seals, **note}).encode())


def write_manifest(
    folder: Path, step: int, world_size: int, run: str, state: Mapping[str, Any], *, optimizer: bool, rng: bool
) -> None:
    """Combine the notes of all ranks. One rank calls it, after all have written. Raises CheckpointError.

    state: content of state.json, which also names the state that each rank's optimizer has of its own. The pieces stay
    texts, of which there may be millions.
    """
    try:
        files: dict[str, Seal] = {}
        pieces: _Pieces = defaultdict(lambda: defaultdict(list))
        values: dict[str, dict[str, Any]] = {}
        own: set[str] = set()
        for rank in range(world_size):
            note = json.loads(rank_note(folder, rank).read_text(encoding="utf-8"))
            files.update({file: Seal(*seal) for file, seal in note["files"].items()})
            part_of = {kind: form.part_of_rank(kind, rank) for kind in get_args(form.Kind)}
            for kind, state_name, name, text in note["pieces"]:
                pieces[part_of[kind]][kind, state_name, name].append(text)
            values.update(note["values"])
            own.update(note["own"])
            rank_note(folder, rank).unlink()
        for name, text in {saved.RUN: run, saved.STATE: json.dumps({**state, "own": sorted(own)}, indent=1)}.items():
            files[name] = write_bytes(folder / name, text.encode())
        content = {"step": step, "world_size": world_size, "values": values, "has_optimizer": optimizer, "has_rng": rng}
        if sum(len(texts) for part in pieces.values() for texts in part.values()) <= form.MOST_PIECES:
            listed = [json.loads(text) for part in pieces.values() for texts in part.values() for text in texts]
            content |= {"format": form.FORMAT, "pieces": listed}
        else:
            content |= {"format": form.BY_RANK, "pieces": _write_parts(folder, pieces, files)}
        content["files"] = {file: {"size": seal.size, "sha256": seal.sha256} for file, seal in files.items()}
        write_bytes(folder / saved.MANIFEST, sealed(content))
        for each in {folder, *((folder / file).parent for file in files)}:
            sync_folder(each)
    except OSError as error:
        raise cannot_write(folder, error) from error


def _write_parts(folder: Path, pieces: _Pieces, files: dict[str, Seal]) -> list[dict[str, Any]]:
    """Write the parts, and add them to `files`. Returns a piece for each tensor, which names its parts."""
    tensors: dict[tuple[str, str, str], dict[str, Any]] = {}
    for part, of_part in pieces.items():
        for key, (text, *_) in of_part.items():
            if key[0] not in form.OF_RANKS:
                first = json.loads(text)
                alike = {name: first[name] for name in ("kind", "name", "state", "dtype", "shape") if name in first}
                tensors.setdefault(key, {"file": part, "key": "", **alike, "parts": []})["parts"].append(part)
        listed = ",".join(text for texts in of_part.values() for text in texts)
        files[part] = write_bytes(folder / part, f'{{"pieces":[{listed}]}}'.encode())
    return [*tensors.values()]


def publish(written: Path, final: Path) -> None:
    """Rename a finished folder to its final name, then write `latest`. Raises CheckpointError."""
    try:
        if final.exists():  # a run that resumed from an earlier step and reached this one again
            if latest_name(final.parent) == final.name:
                # without a checksum, since a kill may leave the old or the new manifest
                _point(final, f"{final.name}\n")
            discard(final)
        written.rename(final)
        sync_folder(final.parent)
        _point(final, latest_text(final))
    except OSError as error:
        raise cannot_write(final, error) from error


def _point(checkpoint: Path, text: str) -> None:
    with replacing(checkpoint.parent / LATEST, checkpoint.parent / f".{LATEST}.tmp") as new:
        write_bytes(new, text.encode())
    sync_folder(checkpoint.parent)


def prune(folder: Path, keep: int, current: Path) -> None:
    """Delete the checkpoints of steps before `current`'s, except the last `keep` - 1. Raises CheckpointError.

    Later steps belong to an earlier run in the same folder, and stay.
    """
    found = step_folders(folder)
    for old in found[found.index(current) + 1 :][max(keep - 1, 0) :]:
        try:
            discard(old)
        except OSError as error:
            raise CheckpointError(f"{old}: cannot delete this old checkpoint: {error.strerror or error}") from error


def remove_leftovers(folder: Path) -> None:
    """Delete the leftovers of saves and deletions that were killed."""
    for path in folder.glob(".step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


def discard(path: Path) -> None:
    """Delete a checkpoint so that a kill leaves no incomplete one under its name."""
    doomed = path.with_name(f".{path.name}.old.tmp")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Fsync a directory: names in it survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def not_finite(name: str) -> CheckpointError:
    """The error of weights that are not saved."""
    hint = "resume from an earlier checkpoint with a lower learning rate or with gradient_clipping"
    return CheckpointError(f"{name} holds nan or inf: nothing is saved", hint=hint)


def cannot_write(path: Path, error: OSError) -> CheckpointError:
    """The error of a checkpoint that the file system refuses."""
    return CheckpointError(
        f"{path}: cannot write the checkpoint: {error.strerror or error}",
        hint="earlier checkpoints are unchanged; free space or name another folder, and use --resume auto",
    )
