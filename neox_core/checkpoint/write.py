"""Writes a checkpoint of a running engine: the folder appears complete and verified, or not at all."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import define, field
from torch import Tensor

from neox_core.checkpoint import manifest as form
from neox_core.checkpoint.manifest import Kind, Piece, part_of_rank, piece_to_plain
from neox_core.checkpoint.regions import regions
from neox_core.checkpoint.tensor_file import DTYPES, Seal, write_bytes, write_tensors
from neox_core.contracts.optim import AveragingOptimizer
from neox_core.errors import CheckpointError
from neox_core.files import replacing
from neox_core.plan.stored import saved
from neox_core.plan.stored.saved import LATEST, latest_name, latest_text, rank_folder, rank_note, sealed, step_folders

if TYPE_CHECKING:
    from neox_core.contracts.engine import Storage
    from neox_core.parallel.groups import Groups
    from neox_core.parallel.shard import Shard
    from neox_core.parallel.tensor import Cut

PLAIN = (bool, int, float, str, type(None))
PART = 4096
"""Pieces of a part, beyond which the next tensor begins another one."""


@define
class RankContents:
    """What one rank stores: the tensors of its files by key, their pieces, numbers of the optimizer's state."""

    rank: int
    tensors: dict[str, dict[str, Tensor]] = field(factory=dict)
    pieces: list[Piece] = field(factory=list)
    values: dict[str, dict[str, Any]] = field(factory=dict)

    def add(self, part: str, kind: Kind, name: str, tensor: Tensor, **place: Any) -> None:
        """Add a tensor. part: one of the rank's files. place: fields of the Piece; its shape: by default the tensor's.

        Raises CheckpointError for weights that are not finite: the loss is computed before the update, so it may still
        be finite, and this checkpoint could replace the last good one.
        """
        if kind in ("weight", "master") and not _finite(tensor):
            raise CheckpointError(f"{name} holds nan or inf: nothing is saved", hint=_DIVERGED)
        file = f"{rank_folder(self.rank)}rank-{self.rank:05d}.{part}.safetensors"
        key = "/".join(filter(None, (kind, place.get("state"), name)))
        place.setdefault("shape", tuple(tensor.shape))
        held = self.tensors.setdefault(file, {})
        if key in held:  # the sections of a split tensor share a name
            key = f"{key}#{len(held)}"
        held[key] = tensor
        self.pieces.append(Piece(file=file, key=key, kind=kind, name=name, dtype=DTYPES[tensor.dtype], **place))

    def add_shard(self, part: str, kind: Kind, shard: Shard, tensor: Tensor, state: str | None = None) -> None:
        """Add the elements of `shard` from a tensor with the layout of `shard.stepped`."""
        if shard.cut is not None:
            self._add_cut(part, kind, shard, shard.cut, shard.part_of(tensor), state)
        elif shard.whole:
            self.add(part, kind, shard.name, tensor, state=state)
        else:
            place = {"shape": shard.shape, "flat_range": (shard.first, shard.first + shard.count)}
            self.add(part, kind, shard.name, shard.part_of(tensor), state=state, **place)

    def _add_cut(self, part: str, kind: Kind, shard: Shard, cut: Cut, flat: Tensor, state: str | None) -> None:
        """Add one piece for each section of the split that `flat` has elements of."""
        for region in regions(cut, shard.shape):
            low, high = max(shard.first, region.first), min(shard.first + shard.count, region.last)
            if low >= high:
                continue
            values = flat[low - shard.first : high - shard.first]
            place: dict[str, Any] = {"shape": shard.whole_shape, "slice": region.slice}
            if (low, high) == (region.first, region.last):
                values = values.view([last - first for first, last in region.slice])
            else:
                place["flat_range"] = (low - region.first, high - region.first)
            self.add(part, kind, shard.name, values, state=state, **place)


def collect(engine: Storage, rank: int, groups: Groups, *, optimizer: bool, whole: bool = False) -> RankContents:
    """What this rank stores of model and optimizer. Each data-parallel rank stores a share of what all of them hold.

    The first rank of a tensor group stores what all of its ranks hold; the first stage of a tied weight stores
    it. whole: whether to join weights that are sharded (ZeRO 3) first, which is collective.
    """
    contents = RankContents(rank)
    data_rank, data_size = groups.data_rank, groups.data_size
    buffers = {name: buffer for name, buffer in engine.model.named_buffers() if name in engine.model.state_dict()}
    for index, (name, tensor) in enumerate(buffers.items()):
        if index % data_size == data_rank and groups.tensor.rank == 0:
            contents.add("weights", "buffer", name, tensor)
    if whole and engine.partitioned:
        for index, (name, tensor) in enumerate(engine.whole_weights()):
            if index % data_size == data_rank and groups.tensor.rank == 0:
                contents.add("weights", "weight", name, tensor.clone())
    else:
        for index, shard in enumerate(engine.weights):
            if engine.stores(shard.name) and _turn(shard, index, groups):
                contents.add_shard("weights", "weight", shard, shard.stepped)
    if not optimizer:
        return contents
    if isinstance(engine.optimizer, AveragingOptimizer):
        for name, tensor in engine.optimizer.own_state().items():
            contents.add("optimizer", "own", f"{rank}/{name}", tensor, rank=rank)
    dtypes = {name: parameter.dtype for name, parameter in engine.model.named_parameters()}
    for index, shard in enumerate(engine.shards):
        if not (_turn(shard, index, groups) and engine.stores(shard.name)):
            continue
        speaks = shard.cut is None or shard.cut.rank == 0  # for a number that all parts of a parameter share
        if shard.stepped.dtype != dtypes[shard.name]:
            contents.add_shard("optimizer", "master", shard, shard.stepped)
        for state, value in engine.optimizer.state.get(shard.stepped, {}).items():
            if not isinstance(value, Tensor) or value.ndim == 0:
                if shard.first == 0 and speaks:  # of a sharded parameter, the part with its first element stores it
                    _add_scalar(contents, shard.name, state, value)
            elif value.shape == shard.stepped.shape or (shard.whole and shard.cut is None):
                contents.add_shard("optimizer", "state", shard, value, state)
            else:
                raise CheckpointError(
                    f"the optimizer's state {state!r} has the shape {list(value.shape)}; under ZeRO it"
                    " must have that of the flat slice, with tensor parallelism that of the parameter, or be a number"
                )
    return contents


def write_rank(folder: Path, contents: RankContents) -> None:
    """Write this rank's files and a note of their contents. Raises CheckpointError, for example for a full disk."""
    try:
        told = rank_note(folder, contents.rank)
        told.parent.mkdir(exist_ok=True)
        files = {file: write_tensors(folder / file, tensors) for file, tensors in contents.tensors.items()}
        seals = {file: [seal.size, seal.sha256] for file, seal in files.items()}
        pieces = [[*_tensor_of(piece), json.dumps(piece_to_plain(piece))] for piece in contents.pieces]
        own = [piece.name.partition("/")[2] for piece in contents.pieces if piece.kind == "own"]
        note = {"files": seals, "pieces": pieces, "values": contents.values, "own": own}
        write_bytes(told, json.dumps(note).encode())
    except OSError as error:
        raise cannot_write(folder, error) from error


def write_manifest(
    folder: Path, step: int, world_size: int, run: str, state: Mapping[str, Any], *, optimizer: bool, rng: bool
) -> None:
    """Combine the notes of all ranks. One rank calls it, after all have written. Raises CheckpointError.

    state: content of state.json, which also names the state that each rank's optimizer has of its own. The pieces stay
    texts, of which there may be millions.
    """
    try:
        files: dict[str, Seal] = {}
        pieces: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        values: dict[str, dict[str, Any]] = {}
        own: set[str] = set()
        for rank in range(world_size):
            note = json.loads(rank_note(folder, rank).read_text(encoding="utf-8"))
            files.update({file: Seal(*seal) for file, seal in note["files"].items()})
            for kind, state_name, name, text in note["pieces"]:
                pieces[kind, state_name, name].append(text)
            values.update(note["values"])
            own.update(note["own"])
            rank_note(folder, rank).unlink()
        for name, text in {saved.RUN: run, saved.STATE: json.dumps({**state, "own": sorted(own)}, indent=1)}.items():
            files[name] = write_bytes(folder / name, text.encode())
        content = {"step": step, "world_size": world_size, "values": values, "has_optimizer": optimizer, "has_rng": rng}
        if sum(map(len, pieces.values())) <= form.MOST_PIECES:
            listed = [json.loads(text) for texts in pieces.values() for text in texts]
            content |= {"format": form.FORMAT, "pieces": listed}
        else:
            content |= {"format": form.IN_PARTS, "pieces": _write_parts(folder, pieces, files)}
        content["files"] = {file: {"size": seal.size, "sha256": seal.sha256} for file, seal in files.items()}
        write_bytes(folder / saved.MANIFEST, sealed(content))
        for each in {folder, *((folder / file).parent for file in files)}:
            sync_folder(each)
    except OSError as error:
        raise cannot_write(folder, error) from error


def _tensor_of(piece: Piece) -> tuple[str, str, str]:
    """Kind, state and name; of what ranks store for themselves, the part in place of the name."""
    return piece.kind, piece.state or "", piece.name if piece.rank is None else part_of_rank(piece.kind, piece.rank)


def _write_parts(
    folder: Path, pieces: dict[tuple[str, str, str], list[str]], files: dict[str, Seal]
) -> list[dict[str, Any]]:
    """Write pieces in order, so that a layer is in few parts, and add these to `files`. Returns one piece a tensor."""
    parts: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    number = count = 0
    for key in sorted(pieces):
        if key[0] in ("own", "rng"):
            parts[key[2]].append(key)
            continue
        if count and count + len(pieces[key]) > PART:
            number, count = number + 1, 0
        count += len(pieces[key])
        parts[f"{form.PARTS}{number:05d}.json"].append(key)
    tensors = []
    for part, keys in parts.items():
        for first in (json.loads(pieces[key][0]) for key in keys if key[2] != part):
            alike = {name: first[name] for name in ("kind", "name", "state", "dtype", "shape") if name in first}
            tensors.append({"file": part, "key": "", **alike})
        texts = (text for key in keys for text in pieces.pop(key))
        files[part] = write_bytes(folder / part, f'{{"pieces":[{",".join(texts)}]}}'.encode())
    return tensors


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
    """Delete checkpoints of earlier steps than `current`'s but the last `keep` - 1. Raises CheckpointError.

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


def cannot_write(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"{path}: cannot write the checkpoint: {error.strerror or error}",
        hint="earlier checkpoints are unchanged; free some space or change `save`, and resume",
    )


def _turn(shard: Shard, index: int, groups: Groups) -> bool:
    """Whether this rank stores a shard, of those that data-parallel ranks have."""
    return (not shard.whole or index % groups.data_size == groups.data_rank) if shard.stores is None else shard.stores


def _add_scalar(contents: RankContents, name: str, state: str, value: Any) -> None:
    if isinstance(value, Tensor):
        contents.add("optimizer", "state", name, value, state=state)
    elif isinstance(value, PLAIN):
        contents.values.setdefault(name, {})[state] = value
    else:
        raise CheckpointError(f"the optimizer's state {state!r} is a {type(value).__name__}, neither tensor nor number")


def _finite(tensor: Tensor) -> bool:
    return tensor.numel() == 0 or all(math.isfinite(float(end)) for end in torch.aminmax(tensor.detach()))


_DIVERGED = "resume from an earlier checkpoint with a lower learning rate or with gradient_clipping"
