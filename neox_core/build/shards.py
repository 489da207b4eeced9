"""Which elements of which parameters this rank's optimizer holds, whatever way the engine laid them out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn

from neox_core.errors import PluginError


@frozen(eq=False)
class Shard:
    """A run of elements of one parameter, counted in the flattened parameter and in what the optimizer steps.

    name, shape: the parameter as the model has it. first, count: elements [first, first + count) of it.
    stepped: the tensor in the optimizer's groups that holds them, from element `offset` of it on. replicated: whether
    every data-parallel rank holds the whole parameter, in its own shape; else `stepped` is a flat partition.
    """

    name: str
    shape: tuple[int, ...]
    first: int
    count: int
    stepped: Tensor
    offset: int
    replicated: bool

    def part_of(self, tensor: Tensor) -> Tensor:
        """The elements of this shard in a tensor laid out as `stepped` is: a view, [count]."""
        return tensor.detach().reshape(-1).narrow(0, self.offset, self.count)


def find_shards(model: nn.Module, wrapper: Any, optimizer: torch.optim.Optimizer) -> tuple[Shard, ...]:
    """The shards of every trainable parameter, in the order of the model.

    wrapper: what DeepSpeed put around `optimizer`, or the optimizer itself. Three layouts are known: the parameters
    themselves, an fp32 copy of each (fp16 and bf16 at ZeRO 0), and flat fp32 partitions of whole groups (ZeRO 1 and
    BF16_Optimizer), where a parameter may be here in part or not at all.
    """
    layout = dict(_shards(model, wrapper, optimizer))
    return tuple(layout[name] for name, _ in model.named_parameters() if name in layout)


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
