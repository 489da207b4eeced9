"""Puts what a checkpoint holds into an engine, which may share it among other ranks than those that wrote it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from neox_core.contracts.optim import AveragingOptimizer
from neox_core.errors import CheckpointError

if TYPE_CHECKING:
    from neox_core.checkpoint.read import CheckpointReader
    from neox_core.contracts.engine import Storage


def restore_weights(engine: Storage, reader: CheckpointReader, *, masters: bool = True) -> None:
    """Load the model's parameters and buffers, after `check_model`; a parameter that is not stored stays as it is.

    masters: whether to take fp32 values from stored fp32 copies of weights, where there are any.
    """
    buffers = {name: buffer for name, buffer in engine.model.named_buffers() if name in engine.model.state_dict()}
    for name, buffer in buffers.items():
        buffer.copy_(reader.tensor("buffer", name))
    with engine.at_hand():
        weights = {id(shard.stepped) for shard in engine.weights}
        held = reader.shapes("weight")
        for shard in (*engine.weights, *(each for each in engine.shards if id(each.stepped) not in weights)):
            if shard.name not in held:
                continue
            exact = masters and shard.stepped.dtype == torch.float32
            source = reader.master_kind(shard.name) if exact else "weight"
            values = reader.part(source, shard.name, None, shard.cut, shard.first, shard.first + shard.count)
            shard.part_of(shard.stepped).copy_(values)
    engine.weights_changed()


def restore_optimizer(engine: Storage, reader: CheckpointReader) -> None:
    """Load the optimizer's state, after `check_optimizer`. Raises CheckpointError when this run cannot shard it."""
    with engine.at_hand(), engine.filled_groups():
        _fill_optimizer(engine, reader)


def restore_own(engine: Storage, reader: CheckpointReader, rank: int, world_size: int) -> list[str]:
    """Load the state that each rank's optimizer has of its own, after everything else. Returns lines for people."""
    if not isinstance(engine.optimizer, AveragingOptimizer):
        return []
    then = reader.manifest.world_size
    stored = [reader.of_rank("own", each) if then != world_size or each == rank else {} for each in range(then)]
    engine.optimizer.load_own_state(stored)
    engine.copy_masters_to_weights()
    if then == world_size or not any(stored):
        return []
    return [
        f"written by {then} ranks, not {world_size}: the errors of compression are redistributed, their sum is kept"
    ]


def _fill_optimizer(engine: Storage, reader: CheckpointReader) -> None:
    stepped = (tensor for group in engine.optimizer.param_groups for tensor in group["params"])
    order = {id(tensor): index for index, tensor in enumerate(stepped)}
    states: dict[int, dict[str, Any]] = defaultdict(dict)
    for shard in engine.shards:
        held = states[order[id(shard.stepped)]]
        for state in reader.states(shard.name):
            shape = reader.tensor_shape("state", shard.name, state)
            if shape == () or (shard.whole and shard.cut is None):
                _same_value(held, state, reader.tensor("state", shard.name, state), shard.name)
            elif shape == shard.whole_shape:
                place = shard.cut, shard.first, shard.first + shard.count
                values = reader.part("state", shard.name, state, *place)
                if shard.whole:
                    held[state] = values.view(shard.shape)
                    continue
                if state not in held:
                    held[state] = engine.new_state(shard, state, values.dtype)
                held[state].narrow(0, shard.offset, shard.count).copy_(values)
            else:
                said = f"the optimizer's state {state!r} of {shard.name} cannot be cut into slices for ZeRO"
                raise CheckpointError(said, hint="resume at ZeRO stage 0, or with no-load-optim")
        for state, value in reader.manifest.values.get(shard.name, {}).items():
            _same_value(held, state, value, shard.name)
    plain = engine.optimizer.state_dict()
    plain["state"] = {index: held for index, held in states.items() if held}
    engine.optimizer.load_state_dict(plain)


def _same_value(held: dict[str, Any], state: str, value: Any, name: str) -> None:
    """Check that a number is equal for all parameters of one flat slice, which has one number."""
    if state in held and not bool(torch.as_tensor(held[state] == value).all()):
        said = f"the optimizer's state {state!r} of {name} differs from that of other parameters in its slice"
        hint = "resume at the ZeRO stage of the run that wrote the checkpoint, or with no-load-optim"
        raise CheckpointError(said, hint=hint)
    held[state] = value
