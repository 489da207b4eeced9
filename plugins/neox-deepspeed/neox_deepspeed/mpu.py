"""This rank's groups in the form that DeepSpeed asks for them, its `mpu`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from typing_extensions import Self

    from neox_core.parallel.groups import Groups


class Place:
    """Tensor and data parallelism; a pipeline has a grid of DeepSpeed's own. The methods have DeepSpeed's names."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def __deepcopy__(self, memo: object) -> Self:
        return self  # a process group cannot be copied

    def get_model_parallel_rank(self) -> int:
        """This rank's place in its tensor-parallel group."""
        return self._groups.tensor.rank

    def get_model_parallel_world_size(self) -> int:
        """The number of tensor-parallel ranks."""
        return self._groups.tensor.size

    def get_model_parallel_group(self) -> ProcessGroup | None:
        """The tensor-parallel group; None for one rank."""
        return self._groups.tensor.group

    def get_data_parallel_rank(self) -> int:
        """This rank's place in its data-parallel group."""
        return self._groups.data_rank

    def get_data_parallel_world_size(self) -> int:
        """The number of data-parallel ranks."""
        return self._groups.data_size

    def get_data_parallel_group(self) -> ProcessGroup | None:
        """The data-parallel group; None for one rank."""
        return self._groups.data

    def get_data_parallel_group_ranks(self) -> list[int]:
        """The ranks of that group, as all ranks of the run are counted."""
        ranks: list[int] = dist.get_process_group_ranks(self._groups.data)
        return ranks
