"""Parameters of which data-parallel ranks have different parts, as experts that are spread over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist
from attrs import frozen

from neox_core.errors import ConfigError
from neox_core.parallel.tensor import Cut

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from neox_core.parallel.groups import Groups


@frozen(eq=False)
class Spread:
    """This rank's position among data-parallel ranks with different parts of a parameter, and among its copies.

    group: the ranks that have all parts together; rank, size: this one's place there. copies: the ranks with the same
    part as this one, whose gradients are added up; copy: this one's place there. Without groups a part is the whole.
    """

    group: ProcessGroup | None = None
    rank: int = 0
    size: int = 1
    copies: ProcessGroup | None = None
    copy: int = 0

    def cut(self, dim: int, length: int) -> Cut:
        """The split of a parameter along `dim`, which is `length` long in the whole."""
        return Cut(dim, (length,), self.rank, self.size)


def spread(groups: Groups, size: int) -> Spread:
    """`size` neighbours of the data-parallel ranks have a part each; one process has everything. Collective.

    Raises ConfigError for a layout in which that is not built.
    """
    if groups.data_size == 1:
        return Spread()
    if groups.model is not None or groups.data_size % size:
        message = f"parameters cannot be spread over {size} of {groups.data_size} data-parallel ranks"
        raise ConfigError(message, hint="a divisor of their number, without tensor or pipeline parallelism")
    ranks = range(groups.data_size)
    parts, _ = dist.new_subgroups_by_enumeration([[*ranks[first : first + size]] for first in ranks[::size]])
    copies, _ = dist.new_subgroups_by_enumeration([[*ranks[place::size]] for place in range(size)])
    copy, rank = divmod(groups.data_rank, size)
    return Spread(parts, rank, size, copies, copy)


def spread_of(parameter: Tensor) -> Spread | None:
    """How a parameter is spread after `mark_parameters`; None: all data-parallel ranks have it."""
    found: Spread | None = getattr(parameter, "spread", None)
    return found
