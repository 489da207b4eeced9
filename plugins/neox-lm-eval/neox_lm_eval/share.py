"""Which rank does which part of the work, and how all of them get all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

import torch.distributed as dist
from attrs import frozen

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")


@frozen
class Share:
    """Part `rank` of `size`. group: of the ranks that have the others; None: there is one."""

    rank: int = 0
    size: int = 1
    group: ProcessGroup | None = None

    def mine(self, number: int) -> bool:
        """Whether this rank does the part of a number."""
        return number % self.size == self.rank

    def together(self, found: Mapping[int, T]) -> dict[int, T]:
        """What all ranks have found, by its number. Collective over `group`."""
        if self.group is None or self.size == 1:
            return dict(found)
        parts: list[Mapping[int, T]] = [{}] * self.size
        dist.all_gather_object(parts, dict(found), group=self.group)
        return {number: each for part in parts for number, each in part.items()}
