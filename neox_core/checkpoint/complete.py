"""Checks that a checkpoint holds all that the model and its optimizer need, and nothing of another model.

To find what an optimizer needs, it is built again for small tensors of the same kinds, and takes a step.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from inspect import signature
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from torch import Tensor

from neox_core.checkpoint.rng import undisturbed
from neox_core.checkpoint.tensor_file import DTYPES
from neox_core.errors import CheckpointError
from neox_core.untrusted import short

if TYPE_CHECKING:
    from neox_core.checkpoint.read import CheckpointReader
    from neox_core.contracts.engine import Storage
    from neox_core.parallel.shard import Shard
    from neox_core.plan.runfile import ComponentRef, ModelPlan

LARGEST = 1 << 20
"""Elements of a tensor that such an optimizer steps: more than any size at which its kind of state may change."""
FLOATS = {"F64", "F32", "F16", "BF16"}


@frozen
class Need:
    """One state tensor or number of a parameter.

    same: for each dimension whether it is as long as the parameter's, else it is 1; None: the state is a number.
    ours: whether this holds; else the shape is the optimizer's own, and is not checked.
    """

    dtype: str
    same: tuple[bool, ...] | None
    ours: bool = True


def check_model(engine: Storage, reader: CheckpointReader, model: ModelPlan, *, finetune: bool = False) -> None:
    """Raises CheckpointError unless weights, their fp32 copies and buffers are exactly those of the model.

    Collective. finetune: what `model` adds may be missing. Either all fp32 copies of trained weights are there or none;
    a weight may have another floating type than the model's.
    """
    shapes = engine.shapes()
    buffers = {name: buffer for name, buffer in engine.model.named_buffers() if name in engine.model.state_dict()}
    found = reader.shapes("weight")
    wanted = {name: shape for name, shape in shapes.items() if name in found or not (finetune and model.adds(name))}
    _same_shapes(reader, "weight", wanted)
    _same_shapes(reader, "buffer", {name: tuple(buffer.shape) for name, buffer in buffers.items()})
    weights, masters = reader.dtypes("weight"), reader.dtypes("master")
    problems = [f"{name} is {dtype}, not a floating type" for name, dtype in weights.items() if dtype not in FLOATS]
    stored = reader.dtypes("buffer")
    problems += [
        f"{name} is {stored[name]}, and {DTYPES[buffer.dtype]} here"
        for name, buffer in buffers.items()
        if (stored[name] in FLOATS) != buffer.dtype.is_floating_point
    ]
    trained = model.trained()
    narrow = [name for name, dtype in weights.items() if dtype not in ("F64", "F32")]
    if masters or (reader.manifest.has_optimizer and _keeps_masters(engine)):
        problems += [f"no fp32 copy of {name}" for name in narrow if name not in masters and trained(name)]
    copies = reader.shapes("master")
    problems += [f"an fp32 copy of {name}, which is not in this model" for name in masters if name not in shapes]
    problems += [f"an fp32 copy of {name}, which is fp32 itself" for name in masters if name in {*shapes} - {*narrow}]
    problems += [
        f"the fp32 copy of {name} is {dtype} {list(copies[name])}"
        for name, dtype in masters.items()
        if name in shapes and (dtype, copies[name]) != ("F32", shapes[name])
    ]
    _refuse(reader, problems)


def check_optimizer(
    engine: Storage,
    optimizer: ComponentRef,
    reader: CheckpointReader,
    model: ModelPlan,
    *,
    updated: bool,
    own: Collection[str] | None,
    ranks: Iterable[int] = (),
) -> None:
    """Raises CheckpointError unless the optimizer's state is complete and only of this model's parameters.

    Collective. updated: whether an update was made before the checkpoint was written; else state may be missing. own:
    what each rank has stored of its own, by the state of the run; None: not known. ranks: of the run that wrote the
    checkpoint, whose part this rank checks.
    """
    trained = model.trained()
    known = {name: shape for name, shape in engine.shapes().items() if trained(name)}
    held = reader.state_names()
    problems = [f"state of {name}, which is not in this model" for name in held if name not in known]
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
    for name, shape in known.items():
        alike[re.sub(r"\d+", "#", name), shape].append(name)  # the same parameter of each layer
    for first, *others in alike.values():
        for name in others:
            apart = held.get(first, set()) ^ held.get(name, set())
            problems += [f"{state} of only one of {first} and {name}" for state in sorted(apart)]
    if (updated or held) and not problems:
        problems += _unmet(engine, optimizer, reader)
    for kind in ("own", "rng"):
        names = reader.names_of_rank(kind, 0)
        differ = [rank for rank in ranks if reader.names_of_rank(kind, rank) != names]
        problems += [f"{kind}: rank {rank} and rank 0 differ" for rank in differ]
        if kind == "own" and own is not None:
            problems += [f"no {short(name)}, which each rank kept for itself" for name in sorted({*own} - names)]
            problems += [f"{short(name)}, which no rank kept for itself" for name in sorted(names - {*own})]
    _refuse(reader, problems)


def _unmet(engine: Storage, optimizer: ComponentRef, reader: CheckpointReader) -> Iterator[str]:
    with engine.at_hand(), engine.filled_groups():
        needs = _needs(engine, optimizer)
    for shard in engine.shards:
        stored, values = reader.states(shard.name), reader.manifest.values.get(shard.name, {})
        for state, need in needs.get(shard.name, {}).items():
            what = f"{state} of {shard.name}"
            if state in stored:
                dtype = reader.tensor_dtype("state", shard.name, state)
                yield from _unlike(what, need, reader.tensor_shape("state", shard.name, state), dtype, shard)
            elif state not in values:
                yield f"no {what}"
            elif need.same is not None:
                yield f"{what} is a number, not a tensor"


def _unlike(what: str, need: Need, shape: tuple[int, ...], dtype: str, shard: Shard) -> Iterator[str]:
    if need.same is None:
        if shape != ():
            yield f"{what} is {list(shape)}, not a number"
        return
    whole = shard.whole_shape
    wanted = whole if not shard.whole else tuple(n if same else 1 for n, same in zip(whole, need.same, strict=False))
    if need.ours and shape != wanted:
        yield f"{what} is {list(shape)}, not {list(wanted)}"
    elif dtype != need.dtype:
        yield f"{what} is {dtype}, not {need.dtype}"


def _needs(engine: Storage, optimizer: ComponentRef) -> dict[str, dict[str, Need]]:
    """The states of each parameter by its name; empty where the optimizer cannot step a small tensor."""
    groups = engine.optimizer.param_groups
    number_of = {id(tensor): number for number, group in enumerate(groups) for tensor in group["params"]}
    # the parameters that the optimizer was built with, which it may distinguish by their attributes
    parameters = dict(engine.model.named_parameters())
    kinds: dict[str, tuple[Any, ...]] = {}
    samples: dict[tuple[Any, ...], Tensor] = {}
    for shard in engine.shards:
        stepped = shard.stepped
        table = bool(getattr(parameters[shard.name], "is_table", False))
        kind = kinds[shard.name] = number_of[id(stepped)], tuple(stepped.shape), table
        if kind not in samples:
            samples[kind] = _sample(stepped, table)
    small = [
        {"params": mine, "weight_decay": group.get("weight_decay", 0.0)}
        for number, group in enumerate(groups)
        if (mine := [sample for kind, sample in samples.items() if kind[0] == number])
    ]
    found: dict[tuple[Any, ...], dict[str, Need]] = {}
    with suppress(Exception), undisturbed():
        exchange = {"group": None} if "group" in signature(optimizer.load()[0]).parameters else {}
        made = optimizer.make(small, **exchange)
        made.step()
        for kind, sample in samples.items():
            shape = tuple(sample.shape)
            found[kind] = {name: _need(value, shape) for name, value in made.state.get(sample, {}).items()}
    return {name: found.get(kind, {}) for name, kind in kinds.items()}


def _need(value: Any, shape: tuple[int, ...]) -> Need:
    if not isinstance(value, Tensor) or value.ndim == 0:
        return Need("", None)
    pairs = list(zip(value.shape, shape, strict=False))
    ours = value.ndim == len(shape) and all(n in (1, most) for n, most in pairs)
    return Need(DTYPES.get(value.dtype, ""), tuple(n == most for n, most in pairs), ours)


def _sample(stepped: Tensor, table: bool) -> Tensor:
    shape = list(stepped.shape)
    while prod(shape) > LARGEST:
        longest = shape.index(max(shape))
        shape[longest] //= 2
    sample = torch.nn.Parameter(torch.zeros(shape, dtype=stepped.dtype, device=stepped.device))
    sample.is_table = table
    sample.grad = torch.full_like(sample, 1e-3)
    return sample


def _keeps_masters(engine: Storage) -> bool:
    dtypes = {name: parameter.dtype for name, parameter in engine.model.named_parameters()}
    return any(shard.stepped.dtype != dtypes[shard.name] for shard in engine.shards)


def _same_shapes(reader: CheckpointReader, kind: str, wanted: dict[str, tuple[int, ...]]) -> None:
    stored = reader.shapes(kind)
    problems = [f"no {name}" for name in wanted if name not in stored]
    problems += [f"{name} is not in this model" for name in stored if name not in wanted]
    problems += [
        f"{name} is {list(stored[name])}, this model has {list(shape)}"
        for name, shape in wanted.items()
        if stored.get(name, shape) != shape
    ]
    if problems:
        said = f"{reader.folder}: made for another model: {_some(problems)}"
        raise CheckpointError(said, hint="the keys of the model must be those of the checkpoint's run.json")


def _refuse(reader: CheckpointReader, problems: list[str]) -> None:
    if problems:
        said = f"{reader.folder}: not what this model and its optimizer need: {_some(problems)}"
        raise CheckpointError(said, hint="load another checkpoint, or set no-load-optim: true to take only the weights")


def _some(problems: Iterable[str], most: int = 4) -> str:
    every = list(problems)
    return "; ".join(every[:most]) + (f"; and {len(every) - most} more" if len(every) > most else "")
