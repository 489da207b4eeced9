"""The block `elasticity`, as in DeepSpeed's documents."""

from typing import Any

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting

MOST = 2**31 - 1
"""Bound of batches and of numbers of GPUs."""
MOST_SIZES = 64


def _setting(default: Any, *, help: str, check: Any = None, unit: str = "", **more: Any) -> Any:
    return setting(default, help=help, check=check, unit=unit, origin="deepspeed", **{"changes": "speed", **more})


def _count(default: int, *, help: str, unit: str) -> Any:
    return _setting(default, help=help, unit=unit, check=v.and_(v.ge(1), v.le(MOST)))


def _sizes(instance: Any, field: Any, value: list[int]) -> None:
    if not value or len(value) > MOST_SIZES or not all(1 <= each <= MOST for each in value):
        raise ValueError(f"must be 1 to {MOST_SIZES} numbers from 1 to {MOST:,}")


@frozen
class ElasticityBlock:
    """Which batch a run takes, and how many GPUs it may have."""

    enabled: bool = _setting(False, help="Choose the batch so that the run may change its number of ranks.")
    max_train_batch_size: int = _count(2000, help="Largest batch to consider.", unit="samples")
    micro_batch_sizes: list[int] = _setting(
        [2, 4, 6], help="Micro-batches to choose from.", unit="samples", check=_sizes
    )
    min_gpus: int = _count(1, help="Fewest GPUs of a run; with version 0.1, fewest copies of the model.", unit="GPUs")
    max_gpus: int = _count(10000, help="Most GPUs of a run; with version 0.1, most copies.", unit="GPUs")
    min_time: int = _setting(
        0,
        help="Shortest time that `neox elastic` keeps a number of ranks before it takes more.",
        unit="minutes",
        check=v.and_(v.ge(0), v.le(MOST)),
        changes="output",
    )
    prefer_large_batch: bool = _setting(
        True,
        help="Of batches that fit equally many numbers of ranks take the largest, else the smallest.",
        aliases=("prefer_larger_batch",),
    )
    version: float = _setting(
        0.2, help="Version of the search: 0.1 counts copies of the model, 0.2 whole nodes.", check=v.in_((0.1, 0.2))
    )
    ignore_non_elastic_batch_info: bool = _setting(
        False, help="Ignore batch keys outside of the block, which otherwise are an error.", changes="output"
    )
    num_gpus_per_node: int = _count(1, help="GPUs of a node: a run has whole nodes (version 0.2).", unit="GPUs")
    model_parallel_size: int = _count(
        1,
        help="Ranks of a copy of the model (version 0.2): model-parallel-size x pipe-parallel-size.",
        unit="ranks",
    )


@frozen
class ElasticitySettings:
    elasticity: ElasticityBlock = _setting(
        ElasticityBlock(), help="Block: one batch for many numbers of ranks, which may change during the run."
    )
    max_restarts: int | None = setting(
        None,
        help="How often `neox train` starts the run again after a rank or a host has failed, on spare hosts of the "
        "hostfile where it has any. Default: never; `neox elastic` with `elasticity` as long as slots are left.",
        check=v.optional(v.and_(v.ge(0), v.le(MOST))),
        changes="output",
        origin="neox",
    )

    @property
    def enabled(self) -> bool:
        """Whether the config asks for it."""
        return self.elasticity.enabled or self.max_restarts is not None
