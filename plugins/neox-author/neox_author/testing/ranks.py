"""Ranks in one process: threads with the collectives of gloo between them; and tensors that have to be the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from neox_author.testing.clauses import hold
from neox_core.parallel.tensor import TensorParallel

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
TIMEOUT = timedelta(seconds=10)


def run_ranks(size: int, run: Callable[[TensorParallel], T], *, sequence_parallel: bool = False) -> list[T]:
    """What `run` returns on each tensor-parallel rank; raises what is raised first, for which other ranks may wait."""
    store = dist.HashStore()

    def on(rank: int) -> T:
        group: Any = dist.ProcessGroupGloo(store, rank, size, TIMEOUT)
        return run(TensorParallel(group, rank, size, sequence_parallel))

    with ThreadPoolExecutor(size) as pool:
        ranks = [pool.submit(on, rank) for rank in range(size)]
        for each in as_completed(ranks):
            each.result()
        return [each.result() for each in ranks]


@contextmanager
def later(faults: list[AssertionError]) -> Iterator[None]:
    """Keep what a clause raises inside the block until all ranks are past it."""
    try:
        yield
    except AssertionError as error:
        faults.append(error)


def hold_same(
    clause: str,
    got: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    tolerance: float = 1e-9,
    noise: Mapping[str, float] | None = None,
) -> None:
    """Raise AssertionError with the clause and the first tensor that differs; tolerance 0: the same bits.

    noise: how far each may be off, where that is more
    """
    for name, value in wanted.items():
        if got[name].shape != value.shape:
            raise AssertionError(f"{clause}: {name} differs: it is {list(got[name].shape)}, not {list(value.shape)}")
        if torch.equal(got[name], value):
            continue
        if tolerance == 0:
            raise AssertionError(f"{clause}: {name} differs")
        far, most = float((got[name] - value).abs().amax()), tolerance * (1 + float(value.abs().amax()))
        most = max(most, (noise or {}).get(name, 0.0))
        if not far <= most:
            raise AssertionError(f"{clause}: {name} differs by {far:.2g}, where {most:.2g} is allowed")
    hold(True, clause)
