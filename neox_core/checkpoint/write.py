"""What each rank stores of a running engine, and the files that it writes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import define, field
from torch import Tensor

from neox_core.checkpoint.manifest import WEIGHTS, Kind, Piece, piece_to_plain
from neox_core.checkpoint.publish import cannot_write, not_finite, write_note
from neox_core.checkpoint.regions import regions
from neox_core.checkpoint.tensor_file import DTYPES, write_tensors
from neox_core.contracts.optim import AveragingOptimizer
from neox_core.errors import CheckpointError
from neox_core.plan.stored.saved import rank_folder, rank_note

if TYPE_CHECKING:
    from neox_core.contracts.engine import Storage
    from neox_core.parallel.groups import Groups
    from neox_core.parallel.shard import Shard
    from neox_core.parallel.tensor import Cut
    from neox_core.plan.runfile import ComponentRef

PLAIN = (bool, int, float, str, type(None))


@define
class RankContents:
    """What one rank stores: the tensors of its files by key, their pieces, numbers of the optimizer's state."""

    rank: int
    check: bool = True  # that weights are finite, when they are added; else who writes them does
    tensors: dict[str, dict[str, Tensor]] = field(factory=dict)
    pieces: list[Piece] = field(factory=list)
    values: dict[str, dict[str, Any]] = field(factory=dict)

    def add(self, part: str, kind: Kind, name: str, tensor: Tensor, **place: Any) -> None:
        """Add a tensor. part: one of the rank's files. place: fields of the Piece; its shape: by default the tensor's.

        Raises CheckpointError for weights that are not finite: the loss is computed before the update, so it may still
        be finite, and this checkpoint could replace the last good one.
        """
        ends = torch.aminmax(tensor.detach()) if self.check and kind in WEIGHTS and tensor.numel() else ()
        if not all(math.isfinite(float(end)) for end in ends):
            raise not_finite(name)
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


def collect(
    contents: RankContents, engine: Storage, groups: Groups, optimizer: ComponentRef | None, *, whole: bool
) -> None:
    """Add what this rank stores of model and optimizer; each data-parallel rank, a share of what all of them hold.

    The first rank of a tensor group stores what all of its ranks hold; the first stage of a tied weight stores it.
    optimizer: whose state is stored. whole: join weights that are sharded (ZeRO 3) first, which is collective.
    """
    data_rank, data_size = groups.data_rank, groups.data_size
    stored = engine.model.state_dict()
    for index, (name, tensor) in enumerate(each for each in engine.model.named_buffers() if each[0] in stored):
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
    if optimizer is None:
        return
    if isinstance(engine.optimizer, AveragingOptimizer):
        for name, tensor in engine.optimizer.own_state().items():
            contents.add("optimizer", "own", f"{contents.rank}/{name}", tensor, rank=contents.rank)
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
                    _add_scalar(contents, shard.name, state, value, optimizer)
            elif value.shape == shard.stepped.shape or (shard.whole and shard.cut is None):
                contents.add_shard("optimizer", "state", shard, value, state)
            else:
                raise CheckpointError(
                    f"{optimizer.owner}: its state {state!r} has the shape {list(value.shape)}; under ZeRO it must have"
                    " that of the flat slice, with tensor parallelism that of the parameter, or be a number",
                    hint="train without ZeRO and tensor parallelism, or take another optimizer",
                )


def write_rank(folder: Path, contents: RankContents) -> None:
    """Write this rank's files and a note of their contents. Raises CheckpointError, for example for a full disk."""
    try:
        rank_note(folder, contents.rank).parent.mkdir(exist_ok=True)
        files = {file: write_tensors(folder / file, tensors) for file, tensors in contents.tensors.items()}
        write_note(folder, contents.rank, files, note_of(contents))
    except OSError as error:
        raise cannot_write(folder, error) from error


def note_of(contents: RankContents) -> dict[str, Any]:
    """What the rank that writes the manifest has to know of another one beside its files."""
    pieces = [
        [piece.kind, piece.state or "", piece.name, json.dumps(piece_to_plain(piece))] for piece in contents.pieces
    ]
    own = [piece.name.partition("/")[2] for piece in contents.pieces if piece.kind == "own"]
    return {"pieces": pieces, "values": contents.values, "own": own}


def _turn(shard: Shard, index: int, groups: Groups) -> bool:
    """Whether this rank stores a shard, of those that data-parallel ranks have."""
    return (not shard.whole or index % groups.data_size == groups.data_rank) if shard.stores is None else shard.stores


def _add_scalar(contents: RankContents, name: str, state: str, value: Any, optimizer: ComponentRef) -> None:
    if isinstance(value, Tensor):
        contents.add("optimizer", "state", name, value, state=state)
    elif isinstance(value, PLAIN):
        contents.values.setdefault(name, {})[state] = value
    else:
        said = f"{optimizer.owner}: its state {state!r} is a {type(value).__name__}, neither tensor nor number"
        raise CheckpointError(said, hint=f"tell the author of {optimizer.plugin}")
