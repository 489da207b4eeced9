"""The ranks of a GPT-NeoX checkpoint: which parameters each has, and where the parts of a parameter lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from attrs import define, field
from torch import Tensor

from neox_checkpoints.neox.folder import NeoXFolder
from neox_checkpoints.neox.groups import MASTER, Contents, Group, Shape, by_decay, canonical, contents, named_groups
from neox_checkpoints.neox.weights import is_buffer
from neox_checkpoints.pickles import read_pickled, require_tensor
from neox_core.errors import CheckpointError

SHARED = ".attention.rpe.weight"
"""The end of the name of a parameter that every block of a stage shares."""
RUN = ("iteration", "global_steps", "skipped_steps", "global_samples", "lr_scheduler", "ds_version", "args")
"""What the files of all ranks of a run have in common."""


@define
class Ranks:
    """The weights of a checkpoint by tensor rank, and the groups of its optimizer by model rank.

    weights: for each tensor rank, by name the file and the tensor. first: what the file of the first rank says.
    """

    folder: NeoXFolder
    first: Mapping[str, Any]
    weights: list[dict[str, tuple[Path, Tensor]]]
    groups: list[list[Group]] = field(factory=list)
    _stage_of: dict[str, int] = field(factory=dict)

    @property
    def tensor_ranks(self) -> int:
        """The number of tensor-parallel ranks that wrote the checkpoint."""
        return len(self.weights)

    @property
    def states(self) -> set[str]:
        """The names of what the optimizer has for each parameter, numbers too."""
        return {name for groups in self.groups for each in groups for name in (*each.pieces, *each.numbers)} - {MASTER}

    def weight_parts(self, name: str) -> list[Tensor]:
        """The part of each tensor rank."""
        shape = self.weights[0][name][1].shape
        return [require_tensor(held[name][1], held[name][0], name, shape) for held in self.weights]

    def kept(self, name: str) -> list[Group] | None:
        """The group of each tensor rank that has a parameter; None: the optimizer has none."""
        stage = self._stage_of.get(name)
        if stage is None:
            return None
        ranks = self.groups[stage * self.tensor_ranks : (stage + 1) * self.tensor_ranks]
        return [next(each for each in groups if name in dict(each.names)) for groups in ranks]

    def place(self) -> None:
        """Note the first stage that has each parameter: the last one has a copy of a tied embedding."""
        for rank, groups in enumerate(self.groups):
            for group in groups:
                for name, _ in group.names:
                    self._stage_of.setdefault(name, rank // self.tensor_ranks)


def read_ranks(folder: NeoXFolder, *, optimizer: bool) -> Ranks:
    """All of a checkpoint but its numbers. Raises CheckpointError for ranks of different runs and missing files."""
    folder.require_whole()
    told = {rank: _mapping(read_pickled(path), path) for rank, path in folder.ranks.items()}
    first = told[0]
    for rank, content in told.items():
        for key in RUN:
            if isinstance(content.get(key), Tensor):
                raise CheckpointError(f"{folder.ranks[rank]}: its {key} is a tensor, which GPT-NeoX does not write")
            if content.get(key) != first.get(key):
                raise CheckpointError(
                    f"{folder.ranks[rank]}: is of another run or step than {folder.ranks[0].name}: its {key} differs",
                    hint="copy the checkpoint's folder again, whole",
                )
    ranks = Ranks(folder, first, list(_weights(folder, told)))
    _require_alike(ranks)
    if optimizer:
        _read_groups(ranks, told)
    return ranks


def _weights(folder: NeoXFolder, told: Mapping[int, Mapping[str, Any]]) -> Iterator[dict[str, tuple[Path, Tensor]]]:
    if not folder.layers:
        for rank, content in told.items():
            path = folder.ranks[rank]
            module = _mapping(content.get("module"), path)
            yield {canonical(str(name)): (path, each) for name, each in module.items()}
        return
    for tensor_rank in sorted({rank for _, rank in folder.layers}):
        held: dict[str, tuple[Path, Tensor]] = {}
        for (layer, rank), path in sorted(folder.layers.items()):
            if rank == tensor_rank:
                held |= {f"{layer}.{name}": (path, each) for name, each in _mapping(read_pickled(path), path).items()}
        yield held


def _mapping(found: Any, path: Path) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{path}: is not a part of a checkpoint of GPT-NeoX")
    return found


def _require_alike(ranks: Ranks) -> None:
    """Every tensor rank has the same parameters in the same shapes, all of them tensors."""
    first = ranks.weights[0]
    for name, (path, each) in first.items():
        if not isinstance(each, Tensor):
            raise CheckpointError(f"{path}: {name.partition('.')[2]} is not a tensor")
    for held in ranks.weights[1:]:
        for name in sorted(first.keys() ^ held.keys()):
            path = (held.get(name) or first[name])[0]
            raise CheckpointError(f"{path}: the ranks of the tensor group do not all have {name.partition('.')[2]}")


def _read_groups(ranks: Ranks, told: Mapping[int, Mapping[str, Any]]) -> None:
    folder = ranks.folder
    held: list[Contents] = []
    written: list[list[list[tuple[str, Shape]]] | None] = []
    for rank, content in told.items():
        paths = [folder.zero[rank, data] for data in range(folder.data_ranks)]
        zero = [(path, _mapping(read_pickled(path), path)) for path in paths]
        found = contents(content.get("optimizer"), zero, folder.ranks[rank])
        if found is None:
            return
        shapes = content.get("param_shapes") or (zero[0][1].get("param_shapes") if zero else None)
        held.append(found)
        written.append(named_groups(shapes, folder.ranks[rank]))
    trained = _trained(ranks)
    stages = [written[rank * ranks.tensor_ranks] for rank in range(len(told) // ranks.tensor_ranks)]
    if any(each is None for each in stages):
        sizes = [held[stage * ranks.tensor_ranks].size for stage in range(len(stages))]
        divided = _divide(trained, sizes, ranks, by_number=held[0].whole)
    for rank, (found, mine) in enumerate(zip(held, written, strict=True)):
        if mine is None:
            names = by_decay(divided[rank // ranks.tensor_ranks], len(found.parts))
        else:
            names = mine if len(mine) == len(found.parts) else by_decay([each for one in mine for each in one], 2)
        if len(names) != len(found.parts):
            path = folder.ranks[rank]
            raise CheckpointError(f"{path}: the optimizer has {len(found.parts)} groups, the parameters {len(names)}")
        pairs = zip(names, found.parts, found.numbers, strict=True)
        ranks.groups.append([Group(each, parts, numbers, found.whole) for each, parts, numbers in pairs])
    ranks.place()


def _trained(ranks: Ranks) -> list[tuple[str, Shape]]:
    """The parameters of the first tensor rank in the order of the layers."""
    by_layer = sorted(ranks.weights[0].items(), key=lambda each: int(each[0].partition(".")[0]))
    return [(name, tuple(each.shape)) for name, (_, each) in by_layer if not is_buffer(name)]


def _divide(
    trained: Sequence[tuple[str, Shape]], sizes: Sequence[int], ranks: Ranks, *, by_number: bool
) -> list[list[tuple[str, Shape]]]:
    """The parameters of each stage of a pipeline, which follow from how many its optimizer has.

    sizes: of each stage, numbers of parameters, or else of their elements with padding
    """
    layers: dict[str, list[tuple[str, Shape]]] = {}
    for each in trained:
        layers.setdefault(each[0].partition(".")[0], []).append(each)
    tied = len(sizes) > 1 and not any(name.endswith("final_linear.weight") for name, _ in trained)
    rest, stages = list(layers.values()), []
    for stage, size in enumerate(sizes):
        mine = list(layers["0"]) if tied and stage == len(sizes) - 1 else []
        while rest:
            grown = _once([*mine, *rest[0]])
            if (len(grown) if by_number else sum(prod(shape) for _, shape in grown)) > size:
                break
            mine, rest = grown, rest[1:]
        stages.append(mine)
    if rest:
        path = ranks.folder.ranks[0]
        raise CheckpointError(f"{path}: the optimizers of all stages have fewer parameters than the model")
    return stages


def _once(names: Sequence[tuple[str, Shape]]) -> list[tuple[str, Shape]]:
    """Without the later ones of a parameter that blocks share."""
    shared = [each for each in names if each[0].endswith(SHARED)]
    return [each for each in names if each not in shared[1:]]
