"""Send bytes from rank to rank over the backend of torch.distributed that the ranks use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from neox_core.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from neox_onebit.settings import OneBitSettings


class Wire:
    """The connection between the ranks of a group.

    group: None for one rank by itself
    settings: name the backend that the group must use

    Raises ConfigError if the group uses another backend.
    """

    def __init__(self, group: ProcessGroup | None, settings: OneBitSettings) -> None:
        self._group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)
        self._by_host = settings.comm_backend_name == "gloo"
        if group is not None:
            _check_backend(settings.comm_backend_name, group)

    def swap(self, parts: Tensor) -> Tensor:
        """Send one part to each rank, and return the parts for this rank in the order of the ranks. Collective.

        parts: uint8 [size, ...], part i for rank i
        """
        sent = self._from_device(parts)
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent, group=self._group)
        return got.to(parts.device)

    def gather(self, part: Tensor) -> Tensor:
        """The parts of all ranks, [size, ...]. Collective.

        part: uint8 [...] of this rank
        """
        sent = self._from_device(part)
        got = sent.new_empty((self.size, *sent.shape))
        dist.all_gather(list(got.unbind()), sent, group=self._group)
        return got.to(part.device)

    def _from_device(self, tensor: Tensor) -> Tensor:
        return (tensor.cpu() if self._by_host else tensor).contiguous()


def _check_backend(named: str, group: ProcessGroup) -> None:
    used = str(dist.get_backend(group))
    if named != used:
        raise ConfigError(
            f"optimizer.params.comm_backend_name is {named}, and the ranks talk over {used}", hint=f"set it to {used}"
        )
