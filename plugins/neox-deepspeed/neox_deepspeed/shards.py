"""Which elements of which parameters this rank's optimizer holds, whatever way the engine laid them out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from attrs import evolve
from torch import Tensor, nn

from neox_core.errors import PluginError
from neox_core.parallel.shard import Shard
from neox_core.parallel.tensor import cut_of


def find_shards(model: nn.Module, wrapper: Any, optimizer: torch.optim.Optimizer, data_rank: int) -> tuple[Shard, ...]:
    """The shards of every trainable parameter, in the order of the model.

    wrapper: what DeepSpeed put around `optimizer`, or the optimizer itself. Five layouts are known: the parameters
    themselves, an fp32 copy of each (fp16 and bf16 at ZeRO 0), either of those that this rank owns (ZeRO 1 of whole
    parameters), flat fp32 partitions of whole groups (ZeRO 1 and 2 and BF16_Optimizer), where a parameter may be here
    in part or not at all, and flat partitions of each parameter (ZeRO 3), of which the last ranks may have none.
    """
    if is_partitioned(model):
        layout = dict(_partitions(model, wrapper, data_rank))
    elif hasattr(wrapper, "round_robin_bit16_groups"):
        layout = dict(_flat_partitions(model, wrapper, data_rank))
    elif hasattr(wrapper, "owned"):
        layout = dict(_owned(model, wrapper))
    else:
        layout = dict(_shards(model, wrapper, optimizer))
    return tuple(evolve(layout[name], cut=cut_of(each)) for name, each in model.named_parameters() if name in layout)


def find_weights(model: nn.Module, data_rank: int) -> tuple[Shard, ...]:
    """Where the weights are that the model computes with: `stepped` is the weight, or this rank's part at ZeRO 3."""
    found = []
    for name, parameter in model.named_parameters():
        if not hasattr(parameter, "ds_tensor"):
            found.append(
                Shard(name, tuple(parameter.shape), 0, parameter.numel(), parameter, 0, True, cut_of(parameter))
            )
        elif part := _part(parameter, data_rank):
            found.append(
                Shard(name, tuple(parameter.ds_shape), *part, parameter.ds_tensor, 0, False, cut_of(parameter))
            )
    return tuple(found)


def is_partitioned(model: nn.Module) -> bool:
    """Whether each rank holds a part of every parameter, as at ZeRO 3."""
    return any(hasattr(parameter, "ds_tensor") for parameter in model.parameters())


def group_contents(wrapper: Any, optimizer: torch.optim.Optimizer) -> list[list[Tensor]]:
    """What the optimizer steps, by parameter group. At ZeRO 3 its own groups are empty but for the step itself."""
    flats = getattr(wrapper, "fp32_partitioned_groups_flat", None)
    if flats is None:
        return [list(group["params"]) for group in optimizer.param_groups]
    contents: list[list[Tensor]] = [[] for _ in optimizer.param_groups]
    for index, flat in enumerate(flats):
        contents[wrapper.sub_group_to_group_id[index]].append(flat)
    return contents


def _part(parameter: Any, data_rank: int) -> tuple[int, int] | None:
    """(first, count) of the elements that this rank holds at ZeRO 3; None where padding is all that is left."""
    size = parameter.ds_tensor.ds_numel
    first = data_rank * size
    count = min(size, parameter.ds_numel - first)
    return (first, count) if count > 0 else None


def _partitions(model: nn.Module, wrapper: Any, data_rank: int) -> Iterator[tuple[str, Shard]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group, flat in zip(wrapper.fp16_groups, wrapper.fp32_partitioned_groups_flat, strict=True):
        offset = 0
        for parameter in group:
            name = names[id(parameter)]
            if part := _part(parameter, data_rank):
                yield name, Shard(name, tuple(parameter.ds_shape), *part, flat, offset, False)
            offset += parameter.ds_tensor.ds_numel


def _flat_partitions(model: nn.Module, wrapper: Any, data_rank: int) -> Iterator[tuple[str, Shard]]:
    """ZeRO 1 and 2. DeepSpeed's own record, `_hp_mapping`, is wrong where it deals gradients in turn."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group, offsets, flat in zip(
        wrapper.round_robin_bit16_groups,
        wrapper.round_robin_bit16_offsets,
        wrapper.single_partition_of_fp32_groups,
        strict=True,
    ):
        begin = data_rank * flat.numel()
        for parameter, offset in zip(group, offsets, strict=True):
            low, high = max(offset, begin), min(offset + parameter.numel(), begin + flat.numel())
            if low < high:
                name = names[id(parameter)]
                yield name, Shard(name, tuple(parameter.shape), low - offset, high - low, flat, low - begin, False)


def _owned(model: nn.Module, wrapper: Any) -> Iterator[tuple[str, Shard]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for weight, stepped in wrapper.owned:
        name = names[id(weight)]
        yield name, Shard(name, tuple(weight.shape), 0, weight.numel(), stepped, 0, True, stores=True)


def _shards(model: nn.Module, wrapper: Any, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Shard]]:
    copies = _copies(wrapper)
    stepped = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        shape, count = tuple(parameter.shape), parameter.numel()
        if hasattr(parameter, "_hp_mapping"):
            mapping = parameter._hp_mapping  # noqa: SLF001  DeepSpeed's own record of the place of each parameter
            if mapping is not None:
                flat = optimizer.param_groups[mapping.param_group_index]["params"][0]
                here, there = mapping.lp_fragment_address, mapping.hp_fragment_address
                yield name, Shard(name, shape, here.start, here.numel, flat, there.start, False)
        elif id(parameter) in copies:
            yield name, Shard(name, shape, 0, count, copies[id(parameter)], 0, True)
        elif id(parameter) in stepped:
            yield name, Shard(name, shape, 0, count, parameter, 0, True)
        else:
            raise PluginError(f"the optimizer has no group for the parameter {name}")


def _copies(wrapper: Any) -> dict[int, Tensor]:
    weights: Iterable[list[Tensor]] = getattr(wrapper, "fp16_groups", ())
    masters: Iterable[list[Tensor]] = getattr(wrapper, "fp32_groups", ())
    return {
        id(weight): master
        for some, others in zip(weights, masters, strict=True)
        for weight, master in zip(some, others, strict=True)
    }
