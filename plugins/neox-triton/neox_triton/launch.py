"""Starting kernels, and writing down how they would be started, for compiling them ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import triton
from attrs import frozen
from neox_kernels.api import bytes_of
from torch import Tensor


@frozen(eq=False)
class Launch:
    """One start of a kernel: `fn` with arguments, compile-time constants and warps.

    stages, and the most registers of a thread on NVIDIA GPUs; 0: as Triton has them.
    """

    fn: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    warps: int
    passes: dict[int, int]
    flops: int
    stages: int = 0
    registers: int = 0

    @property
    def name(self) -> str:
        """The module and the name of the kernel."""
        return f"{self.fn.fn.__module__.rpartition('.')[2]}.{self.fn.fn.__name__.lstrip('_')}"

    @property
    def moved(self) -> int:
        """Bytes: of each tensor once, or as often as `passes` says by its place; 0 times where it is not touched."""
        sizes = {id(each): (bytes_of(each), self.passes.get(at, 1))
                 for at, each in reversed(list(enumerate(self.arguments))) if isinstance(each, Tensor)}  # fmt: skip
        return sum(size * times for size, times in sizes.values())


_RECORD: ContextVar[list[Launch] | None] = ContextVar("launches", default=None)


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Within it kernels are not started but listed, so that tensors on the meta device will do."""
    launches: list[Launch] = []
    token = _RECORD.set(launches)
    try:
        yield launches
    finally:
        _RECORD.reset(token)


def launch(
    fn: Any,
    grid: tuple[int, ...],
    *arguments: Any,
    warps: int,
    stages: int = 0,
    registers: int = 0,
    passes: dict[int, int] | None = None,
    flops: Callable[[], int] | None = None,
    **constants: Any,
) -> None:
    """Start `fn` on `grid`. Products and sums may be fused, which the interpreter does not do.

    stages, registers: as of `Launch`.

    passes: how often the tensors at some places are read or written, where it is not once, and flops: of products of
    matrices, are for a model of the traffic.
    """
    record = _RECORD.get()
    if record is not None:
        record.append(Launch(fn, arguments, constants, warps, passes or {}, flops() if flops else 0, stages, registers))
    else:
        more = {"num_stages": stages} if stages else {}
        if registers and torch.version.hip is None:
            more["maxnreg"] = registers
        fn[grid](*arguments, **constants, num_warps=warps, enable_fp_fusion=True, **more)


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on any device: TRITON_INTERPRET=1 when it was imported."""
    return bool(triton.knobs.runtime.interpret)


def rows(x: Tensor) -> Tensor:
    """[..., width] -> [rows, width], contiguous."""
    return x.reshape(-1, x.shape[-1]).contiguous()


def width_reason(width: int, limit: int) -> tuple[str, ...]:
    """Why rows of `width` elements do not fit."""
    return (f"rows of {width} elements, at most {limit} fit",) if width > limit else ()


def block_of(width: int) -> int:
    """The power of two that holds `width` elements."""
    return int(triton.next_power_of_2(width))


def like(x: Tensor, *others: Tensor) -> torch.dtype:
    """The dtype that torch gives a sum of these."""
    dtype = x.dtype
    for other in others:
        dtype = torch.promote_types(dtype, other.dtype)
    return dtype
