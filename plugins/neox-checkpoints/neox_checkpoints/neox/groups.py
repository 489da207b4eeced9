"""Where the optimizer of one GPT-NeoX rank keeps what belongs to each parameter.

A rank has two groups of parameters: weights, which decay, and the gains of norms and biases, which do not; each in the
order in which the layers hold them. DeepSpeed stores a group as

* a tensor for each parameter (no ZeRO, fp32),
* one flat vector (no ZeRO, fp16),
* equal parts of one flat vector, one for each data rank (ZeRO 1 and 2, and bf16),
* several such parts a rank (DeeperSpeed 0.3.15, ZeRO 1): the vector is cut into intervals, and each interval into the
  parts of the ranks (`stage1.py` of eb7f5cff, `_retrieve_group_sub_partition_weights`).

In each case the pieces, laid end to end, are the parameters laid end to end; after the last one there may be padding,
which the states keep and the fp32 copies drop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from attrs import define, field, frozen
from torch import Tensor

from neox_checkpoints.neox.kinds import shape_in
from neox_checkpoints.pickles import require_tensor
from neox_core.errors import CheckpointError
from neox_core.untrusted import short

Shape = tuple[int, ...]
MASTER = "master"
_WITHOUT_DECAY = ("norm", "input_layernorm", "post_attention_layernorm", "qk_layernorm")


@frozen
class Piece:
    """A tensor of a file: some numbers of a group, or all of a parameter."""

    path: Path
    found: Any


@define
class Group:
    """One group of parameters. pieces: by kind, `master` or the name of a state. numbers: states that are numbers.

    whole: whether each piece is a parameter.
    """

    names: list[tuple[str, Shape]]
    pieces: dict[str, list[Piece]] = field(factory=dict)
    numbers: dict[str, float] = field(factory=dict)
    whole: bool = False

    def tensor(self, kind: str, name: str) -> Tensor | None:
        """What one parameter has of a kind, in its shape; None: it has had no gradient. Raises CheckpointError, which
        names the file.
        """
        first = 0
        for index, (each, shape) in enumerate(self.names):
            if each == name:
                return self._own(kind, index, name, shape) if self.whole else self._cut(kind, name, shape, first)
            first += prod(shape)
        raise KeyError(name)

    def _own(self, kind: str, index: int, name: str, shape: Shape) -> Tensor | None:
        pieces = self.pieces[kind]
        if index >= len(pieces):
            path = pieces[0].path
            raise CheckpointError(f"{path}: the optimizer has {len(pieces)} parameters, the model {len(self.names)}")
        piece = pieces[index]
        found = piece.found
        if found is None:
            return None
        if isinstance(found, Tensor) and kind != MASTER and len(found.shape) == len(shape):
            alike = all(mine in (1, whole) for mine, whole in zip(found.shape, shape, strict=True))
            shape = tuple(found.shape) if alike else shape  # a state for each row or column
        return require_tensor(found, piece.path, f"{kind} of {name}", shape)

    def _cut(self, kind: str, name: str, shape: Shape, first: int) -> Tensor:
        parts, at, last = [], 0, first + prod(shape)
        for piece in self.pieces[kind]:
            flat = require_tensor(piece.found, piece.path, f"{kind} of a group")
            low, high = max(first, at), min(last, at + flat.numel())
            if low < high:
                parts.append(flat[low - at : high - at])
            at += flat.numel()
        if at < last:
            path = self.pieces[kind][-1].path
            raise CheckpointError(f"{path}: {kind} of the group that has {name} ends before it")
        from torch import cat

        return (parts[0] if len(parts) == 1 else cat(parts)).reshape(shape)


def by_decay(names: Sequence[tuple[str, Shape]], count: int) -> list[list[tuple[str, Shape]]]:
    """Parameters in the order of their layers -> those of each group. count: of groups; one where nothing decays."""
    if count == 1:
        return [list(names)]
    without = [each for each in names if not decays(each[0])]
    return [[each for each in names if decays(each[0])], without]


def decays(name: str) -> bool:
    """Whether GPT-NeoX's `get_params_for_weight_decay_optimization` has weight decay act on a parameter."""
    *modules, leaf = name.split(".")
    return leaf != "bias" and modules[-1] not in _WITHOUT_DECAY


def named_groups(shapes: Any, path: Path) -> list[list[tuple[str, Shape]]] | None:
    """The groups of `param_shapes`, a dict of shapes for each, by the names that `canonical` makes; None: not written.

    DeeperSpeed 0.3.15 wrote one dict for all groups, which `by_decay` divides.
    """
    if not shapes:
        return None
    listed = shapes if isinstance(shapes, (list, tuple)) else [shapes]
    if not all(isinstance(each, Mapping) for each in listed):
        raise CheckpointError(f"{path}: param_shapes is not a list of shapes by name")
    return [[(canonical(str(name)), shape_in(shape, name, path)) for name, shape in each.items()] for each in listed]


def canonical(name: str) -> str:
    """NN.rest, where NN is the number of the layer, for all the names that GPT-NeoX gives a parameter."""
    for prefix in ("module.", "sequential."):
        name = name.removeprefix(prefix)
    return f"0.{name.removeprefix('tied_modules.embed.')}" if name.startswith("tied_modules.embed.") else name


@frozen
class Contents:
    """All numbers of one rank's optimizer. parts: for each group, by kind, the tensors in the order of the flat vector.

    count: of groups. elements: for each group, of its fp32 copies or else of its states, padding included.
    """

    parts: list[dict[str, list[Piece]]]
    numbers: list[dict[str, float]]
    whole: bool

    @property
    def size(self) -> int:
        """Number of parameters where each has tensors of its own, else of numbers in all groups, padding included."""
        found = 0
        for group in self.parts:
            pieces = group.get(MASTER) or next(iter(group.values()), [])
            found += len(pieces) if self.whole else sum(each.found.numel() for each in pieces)
        return found


def contents(optimizer: Any, zero: Sequence[tuple[Path, Any]], path: Path) -> Contents | None:
    """What a rank's optimizer holds; None: nothing was stored.

    optimizer: of the file `path` of the rank. zero: the files of its data ranks, in their order, and what they hold.
    """
    try:
        if zero:
            return _of_zero(zero)
        return None if optimizer is None else _of_one(optimizer, path)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        where = zero[0][0] if zero else path
        raise CheckpointError(f"{where}: not the state of an optimizer that is known: {short(repr(error))}") from error


def _of_zero(zero: Sequence[tuple[Path, Any]]) -> Contents:
    states = [(path, content["optimizer_state_dict"]) for path, content in zero]
    path, first = states[0]
    if "fp32_flat_groups" in first:
        raise CheckpointError(
            f"{path}: is of ZeRO stage 3, which GPT-NeoX's pipelines do not have",
            hint="convert it with DeepSpeed's zero_to_fp32.py",
        )
    intervals = "local_sub_partitions_of_fp32_groups" in first
    masters = "local_sub_partitions_of_fp32_groups" if intervals else "single_partition_of_fp32_groups"
    parts: list[dict[str, list[Piece]]] = []
    numbers: list[dict[str, float]] = []
    for group in range(len(first[masters])):
        held = [[(path, each) for each in _listed(state[masters][group])] for path, state in states]
        based = [[(path, each) for each in _based(state["base_optimizer_state"], group)] for path, state in states]
        parts.append({MASTER: [Piece(*each) for each in _interleaved(held)]})
        numbers.append({})
        for where, state in _interleaved(based):
            _sort_in(where, state, parts[-1], numbers[-1])
        for _, state in states:
            _add_steps(state["base_optimizer_state"], group, numbers[-1], state.get("base_optimizer_state_step", 0))
    return Contents(parts, numbers, whole=False)


def _of_one(optimizer: Any, path: Path) -> Contents:
    base = optimizer.get("optimizer_state_dict", optimizer)
    flat, apart = optimizer.get("fp32_groups_flat"), optimizer.get("fp32_groups")
    parts: list[dict[str, list[Piece]]] = []
    numbers: list[dict[str, float]] = []
    for group in range(len(base["param_groups"])):
        held = [flat[group]] if flat is not None else [] if apart is None else apart[group]
        parts.append({MASTER: [Piece(path, each) for each in held]} if held else {})
        numbers.append({})
        states = _based(base, group)
        for place, state in enumerate(states):
            _sort_in(path, state, parts[-1], numbers[-1], place)
        for pieces in parts[-1].values():
            pieces.extend([Piece(path, None)] * (len(states) - len(pieces)))
        _add_steps(base, group, numbers[-1])
    return Contents(parts, numbers, whole=flat is None)


def _listed(each: Any) -> list[Any]:
    return list(each) if isinstance(each, (list, tuple)) else [each]


def _interleaved(by_rank: list[list[Any]]) -> Iterator[Any]:
    """The first of every rank, then the second of every rank."""
    lengths = {len(each) for each in by_rank}
    if len(lengths) != 1:
        raise ValueError(f"the data ranks have {sorted(lengths)} parts of a group")
    for interval in range(lengths.pop()):
        yield from (each[interval] for each in by_rank)


def _based(base: Any, group: int) -> list[Mapping[str, Any]]:
    """The states of a group's tensors, in their order: by number, or without padding in a list of each group."""
    if isinstance(base, (list, tuple)):
        return _listed(base[group])
    return [base["state"].get(number, {}) for number in base["param_groups"][group]["params"]]


def _sort_in(
    path: Path, state: Mapping[str, Any], pieces: dict[str, list[Piece]], numbers: dict[str, float], place: int = 0
) -> None:
    """place: of the tensor in its group; one before it without a state has had no gradient."""
    for name, value in state.items():
        if isinstance(value, Tensor) and value.ndim > 0 and name != "step":
            mine = pieces.setdefault(str(name), [])
            mine += [Piece(path, None)] * (place - len(mine))
            mine.append(Piece(path, value))
        elif isinstance(value, (int, float, Tensor)):
            numbers[str(name)] = max(numbers.get(str(name), 0.0), float(value))


def _add_steps(base: Any, group: int, numbers: dict[str, float], elastic: Any = 0) -> None:
    """Apex counts steps in its groups; DeepSpeed's own Adam counts right for the last parameter of a group only.

    elastic: the count of all groups, which DeepSpeed from 0.11 on keeps beside states without padding.
    """
    counted = base["param_groups"][group].get("step", 0) if isinstance(base, Mapping) else elastic
    if isinstance(counted, (int, float, Tensor)) and float(counted) > 0:
        numbers["step"] = max(numbers.get("step", 0.0), float(counted))
