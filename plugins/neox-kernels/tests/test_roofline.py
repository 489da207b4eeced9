"""The model of what a kernel moves through memory, against sums by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from attrs import frozen
from neox_kernels.roofline import traffic_of
from torch import Tensor

SIZE = 1024
BYTES = 4 * SIZE


@frozen
class Started:
    name: str
    moved: int
    flops: int = 0


class Fused:
    """Of `x + 1` a recorded start, and whatever operations of torch are put behind it."""

    remembers = False

    def __init__(self, behind: Any = lambda x: x, flops: int = 0) -> None:
        self.behind, self.flops = behind, flops
        self.starts: list[Started] = []

    def __call__(self, x: Tensor) -> Any:
        self.starts.append(Started("plus", 2 * BYTES, self.flops))
        return self.behind(torch.empty_like(x))

    @contextmanager
    def recording(self) -> Iterator[list[Started]]:
        yield self.starts


def x(**options: Any) -> Tensor:
    return torch.empty(SIZE, device="meta", **options)


def test_a_kernel_that_reads_and_writes_once() -> None:
    found = traffic_of(Fused(), [x()])
    assert (found.moved, found.least, found.share) == (2 * BYTES, 2 * BYTES, 1.0)
    assert found.line == "moves 0 MB of at least 0 MB: at most 100% of bandwidth"


@pytest.mark.parametrize(
    ("behind", "extra"),
    [
        (lambda y: y.view(32, 32).t(), 0),
        (lambda y: y.view(32, 32).t().contiguous(), 2 * BYTES),
        (lambda y: y.mul_(2), 2 * BYTES),
        (lambda y: y + y.new_zeros(1).expand(SIZE), 2 * BYTES + 4 + 4),
    ],
)
def test_operations_of_torch_are_counted(behind: Any, extra: int) -> None:
    assert traffic_of(Fused(behind), [x()]).moved == 2 * BYTES + extra


def test_who_misses_the_bandwidth_and_why() -> None:
    line = traffic_of(Fused(lambda y: y * 2), [x()]).line
    assert "at most 50% of bandwidth, MISSES 85%: mul 0 MB, plus 0 MB" in line
    assert "bound by 0.0 TFLOP of products" in traffic_of(Fused(flops=10**7), [x()]).line


def test_a_backward_pass_is_counted() -> None:
    found = traffic_of(Doubled(), [x(requires_grad=True)])
    assert found.by_name == {"mul": 4 * BYTES}
    assert found.least == 5 * BYTES  # x, y; their gradients; x once more


class Doubled(Fused):
    remembers = True

    def __call__(self, x: Tensor) -> Tensor:
        return x * 2
