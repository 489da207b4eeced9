"""Starting kernels, and writing down how they would be started, for compiling them ahead of time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import triton
from attrs import frozen
from torch import Tensor


@frozen(eq=False)
class Launch:
    """One start of a kernel: `fn` with arguments, compile-time constants and warps."""

    fn: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    warps: int


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


def launch(fn: Any, grid: tuple[int, ...], *arguments: Any, warps: int, **constants: Any) -> None:
    """Start `fn` on `grid`. Products and sums may be fused, which the interpreter does not do."""
    record = _RECORD.get()
    if record is not None:
        record.append(Launch(fn, arguments, constants, warps))
    else:
        fn[grid](*arguments, **constants, num_warps=warps, enable_fp_fusion=True)


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
