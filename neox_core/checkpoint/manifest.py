"""The contents of a checkpoint folder. Written last: a folder without a manifest is not a checkpoint.

step-00000100/
manifest.json                        its own SHA-256; size and SHA-256 of every other file; every piece of every tensor
run.json                             the plan of the run that wrote it
state.json                           step, consumed samples and tokens, schedule, plugins
rank-00000.weights.safetensors       one of each for every rank that stores something
rank-00000.optimizer.safetensors
rank-00000.rng.safetensors
ranks-00001/                         the same of the ranks from 256 on

Of more than MOST_PIECES pieces, the manifest has one for each tensor, which names the parts with its pieces. A part,
such as pieces-00000.json, has what some ranks have stored; pieces-rng-00000.json what each of some keeps for itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from attrs import field, fields, frozen
from attrs import validators as v

from neox_core.checkpoint.seal import TYPES, Seal, check_seal
from neox_core.errors import CheckpointError
from neox_core.plan.stored.saved import MANIFEST, MOST_MANIFEST, RANKS_OF_A_FOLDER, RUN, STATE, read_sealed
from neox_core.untrusted import read_object, strict_converter, structured

FORMAT, BY_TENSOR, BY_RANK = 1, 2, 3
"""With all pieces in the manifest, with each tensor's in one part, as an earlier version wrote, and by their ranks."""
MOST_PIECES = 10_000
RANKS_OF_A_PART = 64
MOST_RANKS = 1 << 20
PARTS = "pieces-"
OF_RANKS = ("own", "rng")
"""Kinds that each rank stores for itself."""
_PART = rf"{PARTS}((own|rng)-)?\d{{5,}}\.json"
_FILE = rf"(ranks-\d{{5,}}/)?rank-\d{{5,}}\.(weights|optimizer|rng)\.safetensors|run\.json|state\.json|{_PART}"

Kind = Literal["weight", "buffer", "master", "state", "own", "rng"]
WEIGHTS: tuple[Kind, ...] = "weight", "master"
"""Their values have to be finite."""
Slice = tuple[tuple[int, int], ...]


@frozen
class Piece:
    """One stored tensor: a whole tensor, or a part of one.

    kind: weight: in the model's type. master: the fp32 copy that the optimizer steps. state: the optimizer's, named by
    `state`. own: of the optimizer, state that only one rank has. buffer: of a module. rng: the state of a random
    generator of one rank. name: of the parameter. shape: of the whole tensor. flat_range: the elements of the flattened
    tensor; None: all. slice: one [first, last) per dimension, of a tensor that is split over a tensor-parallel group;
    flat_range then counts within the slice. parts: files with the pieces of a tensor, in the order of ranks, the first
    of which is `file`.
    """

    file: str = field(validator=v.matches_re(_FILE))
    key: str
    kind: Kind
    name: str
    dtype: str = field(validator=v.in_(set(TYPES)))
    shape: tuple[int, ...] = field(validator=[v.max_len(64), v.deep_iterable(v.ge(0))])  # torch's own limit
    flat_range: tuple[int, int] | None = None
    state: str | None = None
    rank: int | None = None
    slice: Slice | None = None
    parts: tuple[str, ...] = field(factory=tuple, validator=v.deep_iterable(v.matches_re(_PART)))

    def __attrs_post_init__(self) -> None:
        inside = self.slice is None or (
            len(self.slice) == len(self.shape)
            and all(0 <= first < last <= length for (first, last), length in zip(self.slice, self.shape, strict=True))
        )
        if not inside:
            raise ValueError(f"{self.key}: slice {self.slice} of a tensor of shape {self.shape}")
        elements = math.prod(self.region_shape)
        if self.flat_range is not None and not 0 <= self.flat_range[0] < self.flat_range[1] <= elements:
            raise ValueError(f"{self.key}: elements {self.flat_range} of a tensor of shape {self.region_shape}")

    @property
    def region_shape(self) -> tuple[int, ...]:
        """Shape of the slice; of the whole tensor where there is no slice."""
        return self.shape if self.slice is None else tuple(last - first for first, last in self.slice)

    @property
    def span(self) -> tuple[int, int]:
        """The elements of the flattened slice, or tensor."""
        return self.flat_range or (0, math.prod(self.region_shape))

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of what the file holds: of the slice, or [elements] where `flat_range` has a part of it."""
        return self.region_shape if self.flat_range is None else (self.flat_range[1] - self.flat_range[0],)


@frozen
class Manifest:
    """All pieces of a checkpoint. values: optimizer state that is a plain number, by parameter and state.

    sealed: whether the file had its own checksum; earlier versions wrote none.
    """

    step: int = field(validator=v.ge(0))
    world_size: int = field(validator=[v.ge(1), v.le(MOST_RANKS)])
    files: dict[str, Seal] = field(validator=v.deep_mapping(v.matches_re(_FILE), v.instance_of(Seal)))
    pieces: tuple[Piece, ...]
    values: dict[str, dict[str, Any]] = field(factory=dict)
    has_optimizer: bool = True
    has_rng: bool = True
    format: int = FORMAT
    sealed: bool = True


def piece_to_plain(piece: Piece) -> dict[str, Any]:
    """A piece with a tensor as JSON holds it: without the fields that are None."""
    found = {each.name: getattr(piece, each.name) for each in fields(Piece) if each.name != "parts"}
    return {name: value for name, value in found.items() if value is not None}


def part_of_rank(kind: str, rank: int) -> str:
    """The part with the pieces of a kind that a rank stores."""
    of_rank = f"{kind}-{rank // RANKS_OF_A_FOLDER:05d}" if kind in OF_RANKS else f"{rank // RANKS_OF_A_PART:05d}"
    return f"{PARTS}{of_rank}.json"


def read_pieces(path: Path, seal: Seal) -> Sequence[Piece]:
    """The pieces in a part. Raises CheckpointError when it is missing, or was changed."""
    check_seal(path, seal)
    raw = read_object(path, CheckpointError, MOST_MANIFEST).get("pieces")
    return structured(strict_converter(), raw, list[Piece], f"{path}: not a list of pieces", CheckpointError)


def read_manifest(folder: Path) -> Manifest:
    """Read a manifest. Raises CheckpointError when it is missing, has another format, or was changed."""
    path = folder / MANIFEST
    raw, sealed = read_sealed(path)
    if raw.get("format") not in (FORMAT, BY_TENSOR, BY_RANK):
        raise CheckpointError(f"{path}: format {raw.get('format')}, this version reads formats {FORMAT} to {BY_RANK}")
    manifest = structured(
        strict_converter(), {**raw, "sealed": sealed}, Manifest, f"{path}: not a manifest", CheckpointError
    )
    unsealed = {file for piece in manifest.pieces for file in (piece.file, *piece.parts)} - set(manifest.files)
    if unsealed or not {RUN, STATE} <= set(manifest.files):
        raise CheckpointError(f"{path}: names no checksum for {', '.join(sorted(unsealed)) or RUN}")
    return manifest
