"""Sums of tensor-parallel ranks through shared memory: those of float64, with the same bits on every rank."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from neox_author.testing.ranks import run_ranks
from neox_author.testing.two_ranks import on_ranks
from neox_gpt import exchange
from neox_gpt.exchange import HEAD, PART, Exchange, on_one_host
from torch import Tensor

from neox_core.parallel.tensor import TensorParallel

pytestmark = pytest.mark.ranks

CPU = torch.device("cpu")
SHAPES = ((), (0,), (5, 7), (PART // 4,), (PART // 4 + 1,), (700, 1000))


def of_rank(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Transposed, where there are two dimensions, so that its elements are not in order."""
    return (100 * torch.randn(shape, generator=torch.Generator().manual_seed(rank))).to(dtype).t()


@pytest.mark.parametrize("size", [2, 3])
def test_sums_and_maxima(size: int) -> None:
    def act(rank: int, group: Any) -> bool:
        tensor = on_one_host(TensorParallel(group, rank, size), CPU)
        assert tensor.exchange is not None
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for shape in SHAPES if dtype == torch.float32 else SHAPES[2:3]:
                x = of_rank(rank, shape, dtype)
                before, total, most = x.clone(), tensor.add_up(x), tensor.highest(x)
                every = torch.stack([of_rank(each, shape, dtype) for each in range(size)]).double()
                exact = 0.0 if dtype == torch.int64 else torch.finfo(dtype).eps
                assert total.dtype == dtype
                assert total.shape == x.shape
                assert torch.equal(x, before)
                assert torch.equal(most.double(), every.amax(0))
                assert ((total - every.sum(0)).abs() <= size * exact * every.abs().sum(0)).all()
                rows = [torch.empty_like(total, memory_format=torch.contiguous_format) for _ in range(size)]
                dist.all_gather(rows, total.contiguous(), group=group)
                assert all(torch.equal(each, total) for each in rows)
        return True

    assert on_ranks(size, act, "the sums are right") == [True] * size


def test_two_ranks_have_the_bits_of_gloo() -> None:
    def act(rank: int, group: Any) -> bool:
        by_gloo = TensorParallel(group, rank, 2)
        x = of_rank(rank, SHAPES[-1], torch.bfloat16)
        return torch.equal(on_one_host(by_gloo, CPU).add_up(x), by_gloo.add_up(x))

    assert on_ranks(2, act, "both sums are the same") == [True, True]


@pytest.mark.parametrize("fault", ["hidden", "of another process"])
def test_gloo_sums_where_one_rank_cannot_open_the_memory(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def act(rank: int, group: Any) -> list[Any]:
        def open_other(path: str, flags: int) -> int:
            if fault == "hidden":
                raise PermissionError(path)
            return opened("/dev/zero", flags)

        if rank == 1:
            monkeypatch.setattr(exchange.os, "open", open_other)
        tensor = on_one_host(TensorParallel(group, rank, 2), CPU)
        return [tensor.exchange is None, tensor.add_up(torch.tensor([rank + 1.0])).item()]

    assert on_ranks(2, act, "they go on without it") == [[True, 3.0]] * 2


def test_ranks_that_are_threads_or_on_gpus_use_their_group() -> None:
    assert [each.exchange for each in run_ranks(2, lambda tensor: on_one_host(tensor, CPU))] == [None, None]
    assert on_one_host(TensorParallel(None, 0, 2), torch.device("cuda")).exchange is None


@pytest.fixture
def peer() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process


def beside(process: subprocess.Popen[bytes], timeout_s: float) -> Exchange:
    return Exchange(mmap.mmap(-1, HEAD + 4 * PART), (-1, os.pidfd_open(process.pid)), timeout_s)


def test_the_end_of_another_rank_is_an_error(peer: subprocess.Popen[bytes]) -> None:
    made = beside(peer, 60.0)
    assert peer.stdin is not None
    peer.stdin.close()
    with pytest.raises(RuntimeError, match="tensor-parallel rank 1: connection closed: its process has ended"):
        made(torch.ones(3), dist.ReduceOp.SUM)


def test_no_rank_waits_for_ever(peer: subprocess.Popen[bytes]) -> None:
    with pytest.raises(RuntimeError, match="tensor-parallel rank 1: timed out"):
        beside(peer, 0.1)(torch.ones(3), dist.ReduceOp.MAX)
