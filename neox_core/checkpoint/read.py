"""Reads tensors of a checkpoint by name, however they were split when they were stored. Executes nothing in it."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import chain, pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neox_core.checkpoint.manifest import OF_RANKS, PARTS, Kind, Piece, Slice, part_of_rank, read_manifest, read_pieces
from neox_core.checkpoint.regions import fit_together, regions
from neox_core.checkpoint.seal import check_seal
from neox_core.checkpoint.tensor_file import read_part
from neox_core.errors import CheckpointError
from neox_core.plan.stored.earlier import as_today
from neox_core.plan.stored.saved import DAMAGED, RUN, STATE, find_checkpoint
from neox_core.untrusted import read_object

if TYPE_CHECKING:
    from neox_core.parallel.tensor import Cut


_Key = tuple[str, str, str | None]


class CheckpointReader:
    """One checkpoint. Building a reader checks the manifest; `verify` checks the files that it names.

    Of a checkpoint with parts, it reads those with the elements that it is asked for, and others where it must search.

    fetch: gets a file of a checkpoint in a store, by folder, name, size and SHA-256; None: all are in `folder`.
    """

    def __init__(self, folder: Path, fetch: Callable[[Path, str, int, str], Path] | None = None) -> None:
        self.folder = folder
        self._fetch = fetch
        self.manifest = read_manifest(folder)
        self._tensors: dict[_Key, Piece] = {(each.kind, each.name, each.state): each for each in self.manifest.pieces}
        self._pieces: dict[_Key, dict[Slice, list[Piece]]] = defaultdict(lambda: defaultdict(list))
        self._of_ranks: dict[tuple[str, int | None], list[Piece]] = defaultdict(list)
        self._parts: set[str] = set()
        self._keep([each for each in self.manifest.pieces if not each.file.startswith(PARTS)])
        self._states: dict[str, list[str]] = defaultdict(list)
        for kind, name, state in self._tensors:
            if kind == "state":
                self._states[name].append(str(state))

    def verify(self, choose: Callable[[int, str], bool] = lambda index, file: True) -> None:
        """Compare files with the manifest's checksums, those that `choose(index, file)`. Raises CheckpointError."""
        for index, (file, seal) in enumerate(sorted(self.manifest.files.items())):
            if choose(index, file):
                if file.startswith(PARTS):
                    self._read_part(file)
                elif self._fetch is None:
                    check_seal(self.folder / file, seal)
                else:
                    self._path(file)

    def _keep(self, pieces: Iterable[Piece]) -> None:
        """Keep pieces. Raises CheckpointError unless those of a tensor make it up when all of its parts are read."""
        found: dict[_Key, list[Piece]] = defaultdict(list)
        for piece in pieces:
            found[piece.kind, piece.name, piece.state].append(piece)
            self._of_ranks[piece.kind, piece.rank].append(piece)
        for key, of_tensor in found.items():
            held = self._pieces[key]
            for piece in of_tensor:
                insort(held[piece.slice or ()], piece, key=lambda each: each.span)
            if self._parts.issuperset(_parts(self._tensors.get(key))) and not fit_together([*chain(*held.values())]):
                raise CheckpointError(f"{self.folder}: the pieces of {key[0]} {key[1]} do not fit together")

    def _read_part(self, part: str) -> None:
        """Keep the pieces in a part. Raises CheckpointError unless they are those of the tensors that name it."""
        if part in self._parts:
            return
        pieces, files = read_pieces(self._path(part), self.manifest.files[part]), self.manifest.files
        said = {(*key, each.dtype, each.shape) for key, each in self._tensors.items() if part in _parts(each)}
        found = {
            (each.kind, each.name, each.state, each.dtype, each.shape)
            for each in pieces
            if each.rank is None or each.kind not in OF_RANKS or part_of_rank(each.kind, each.rank) != part
        }
        if found != said or not files.keys() >= {each.file for each in pieces}:
            raise CheckpointError(f"{self.folder / part}: its pieces are not those of the manifest", hint=DAMAGED)
        self._parts.add(part)
        self._keep(pieces)

    def pieces_with(self, key: _Key, part: Slice, first: int, last: int) -> list[Piece]:
        """The pieces in order with the elements [first, last) of a slice, () for the whole; [] where none are cut so.

        Ranks have elements, or slices, in order: the search begins where these would be if all ranks had as many.
        """
        files, whole = _parts(self._tensors[key]), self._tensors[key].shape
        shape = [high - low for low, high in part] or whole
        near = {len(files) * first // max(prod(shape), 1), *(len(files) * part[0][0] // whole[0] for _ in part[:1])}
        for _, file in [
            (0, ""),
            *sorted((min(abs(index - at) for at in near), file) for index, file in enumerate(files)),
        ]:
            if file:
                self._read_part(file)
            held = self._pieces[key].get(part, ())
            found = [each for each in held if max(first, each.span[0]) < min(last, each.span[1]) or not prod(shape)]
            joined = all(one.span[1] == other.span[0] for one, other in pairwise(found))
            if found and joined and found[0].span[0] <= first and last <= found[-1].span[1]:
                return found
        return []

    def _pieces_of_rank(self, kind: Kind, rank: int) -> list[Piece]:
        part = part_of_rank(kind, rank)
        if part in self.manifest.files:
            self._read_part(part)
        return self._of_ranks.get((kind, rank), [])

    def _path(self, file: str) -> Path:
        """Where a file lies; one of a store is verified when it is fetched."""
        seal = self.manifest.files[file]
        return self.folder / file if self._fetch is None else self._fetch(self.folder, file, seal.size, seal.sha256)

    def state(self) -> dict[str, Any]:
        """The content of state.json. Raises CheckpointError for one that is damaged."""
        check_seal(self.folder / STATE, self.manifest.files[STATE])
        return read_object(self.folder / STATE, CheckpointError)

    def run(self) -> dict[str, Any]:
        """The content of run.json, as a plan of today has it. Raises as `state`."""
        check_seal(self.folder / RUN, self.manifest.files[RUN])
        return as_today(read_object(self.folder / RUN, CheckpointError))

    def shapes(self, kind: str) -> dict[str, tuple[int, ...]]:
        """Shape by name of every tensor of one kind."""
        return {name: each.shape for (has, name, _), each in self._tensors.items() if has == kind}

    def dtypes(self, kind: str) -> dict[str, str]:
        """Type by name of every tensor of one kind."""
        return {name: each.dtype for (has, name, _), each in self._tensors.items() if has == kind}

    def states(self, name: str) -> list[str]:
        """The optimizer's state tensors of one parameter."""
        return self._states.get(name, [])

    def state_names(self) -> dict[str, set[str]]:
        """The optimizer's states of every parameter, tensors and numbers."""
        names = {*self._states, *self.manifest.values}
        return {name: {*self.states(name), *self.manifest.values.get(name, {})} for name in names}

    def names_of_rank(self, kind: Kind, rank: int) -> set[str]:
        """The names of a kind that each rank stores for itself, of one rank."""
        return {piece.name.partition("/")[2] for piece in self._pieces_of_rank(kind, rank)}

    def master_kind(self, name: str) -> str:
        """The kind that holds the most exact values of a parameter."""
        return "master" if ("master", name, None) in self._tensors else "weight"

    def tensor_shape(self, kind: str, name: str, state: str | None = None) -> tuple[int, ...]:
        """Shape of a whole tensor, read from the manifest. state: of the optimizer, by name."""
        return self._tensors[kind, name, state].shape

    def tensor_dtype(self, kind: str, name: str, state: str | None = None) -> str:
        """Type of a tensor as safetensors names it, such as "F32". state: of the optimizer, by name."""
        return self._tensors[kind, name, state].dtype

    def tensor(self, kind: str, name: str, state: str | None = None) -> Tensor:
        """A whole tensor, on the CPU."""
        shape = self.tensor_shape(kind, name, state)
        return self.flat(kind, name, state, 0, prod(shape)).reshape(shape)

    def flat(self, kind: str, name: str, state: str | None, first: int, last: int) -> Tensor:
        """The elements [first, last) of a tensor, flattened: [last - first], on the CPU."""
        pieces = self.pieces_with((kind, name, state), (), first, last)
        return self._run(pieces, first, last) if pieces else self._join((kind, name, state)).reshape(-1)[first:last]

    def part(self, kind: str, name: str, state: str | None, cut: Cut | None, first: int, last: int) -> Tensor:
        """The elements [first, last) of a rank's part of a tensor, flattened; cut None: of the whole tensor."""
        if cut is None:
            return self.flat(kind, name, state, first, last)
        found = []
        for region in regions(cut, self.tensor_shape(kind, name, state)):
            low, high = max(first - region.first, 0), min(last, region.last) - region.first
            if low < high:
                pieces = self.pieces_with((kind, name, state), region.slice, low, high)
                if not pieces:
                    return cut.of(self.tensor(kind, name, state)).reshape(-1)[first:last]
                found.append(self._run(pieces, low, high))
        return found[0] if len(found) == 1 else torch.cat(found)

    def _join(self, key: _Key) -> Tensor:
        """The whole of a tensor that is stored in slices."""
        for file in _parts(self._tensors[key]):
            self._read_part(file)
        values = {at: self._run(held, 0, prod(held[0].region_shape)) for at, held in self._pieces[key].items()}
        whole = next(iter(values.values())).new_empty(self._tensors[key].shape)
        for at, flat in values.items():
            whole[tuple(slice(*each) for each in at)] = flat.view([last - first for first, last in at])
        return whole

    def _run(self, pieces: list[Piece], first: int, last: int) -> Tensor:
        """The elements [first, last) of one slice, from its pieces in order."""
        parts = []
        for piece in pieces:
            begin, end = piece.span
            low, high = max(first, begin), min(last, end)
            if low < high or prod(piece.region_shape) == 0:
                part = None if piece.flat_range is None else (low - begin, high - begin)
                found = read_part(self._path(piece.file), piece.key, piece.stored_shape, piece.dtype, part)
                parts.append(found if part is not None else found.reshape(-1)[low:high])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def of_rank(self, kind: Kind, rank: int) -> dict[str, Tensor]:
        """What only one rank stored of a kind, by name: states of its generators, or of its optimizer."""
        return {
            piece.name.partition("/")[2]: read_part(self._path(piece.file), piece.key, piece.shape, piece.dtype)
            for piece in self._pieces_of_rank(kind, rank)
        }


def read_weights(checkpoint: Path) -> dict[str, Tensor]:
    """Every weight by parameter name, whole, on the CPU, checksums verified.

    checkpoint: a checkpoint's folder or one that holds checkpoints. Raises CheckpointError.
    """
    if (folder := find_checkpoint(checkpoint)) is None:
        raise CheckpointError(f"{checkpoint}: no checkpoint here")
    reader = CheckpointReader(folder)
    reader.verify(lambda _, file: ".weights." in file)
    return {name: reader.tensor("weight", name) for name in reader.shapes("weight")}


def _parts(tensor: Piece | None) -> tuple[str, ...]:
    """The parts that a piece of the manifest stands for."""
    return () if tensor is None or not tensor.file.startswith(PARTS) else tensor.parts or (tensor.file,)
