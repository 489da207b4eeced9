"""What all kernels here have in common: `neox_core.contracts.Kernel`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from neox_kernels.api import Tile, Tiled, width_of

from neox_triton.choices import Tiling
from neox_triton.examples import LARGE, TUNED, Size
from neox_triton.launch import Launch, interpreted, recording, width_reason

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@frozen(eq=False)
class TritonKernel(Tiled):
    """An op by Triton.

    run: the op. cases: arguments by (dtype, device, size of a model). max_width, max_bytes: of a row; None: any.
    tested: architectures that `neox kernels check` and tests/gpu have passed on. unasked: why `auto` takes it on none.
    remembers: whether the backward pass needs the first argument. tiling: None where no table has its tiles.
    """

    run: Callable[..., Any]
    cases: Callable[[torch.dtype, torch.device, Size | None], Iterable[tuple[Any, ...]]]
    max_width: int | None = None
    max_bytes: int | None = None
    tested: frozenset[str] = frozenset()
    unasked: str = ""
    remembers: bool = True
    tiling: Tiling | None = None
    tiles: Path = Path(__file__).with_name("tiles.csv")

    def why_not(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[str, ...]:
        reasons: tuple[str, ...] = ()
        if device.type == "cpu" and not interpreted():
            reasons += ("a CPU runs no Triton, only its interpreter, by TRITON_INTERPRET=1",)
        elif device.type not in ("cpu", "cuda"):
            reasons += (f"not for {device.type}",)
        if dtype not in DTYPES:
            reasons += (f"not for {str(dtype).removeprefix('torch.')}",)
        if self.max_width is not None:
            most = self.max_width if self.max_bytes is None else min(self.max_width, self.max_bytes // dtype.itemsize)
            reasons += width_reason(shape[-1], most)
        return reasons

    def recording(self) -> AbstractContextManager[list[Launch]]:
        return recording()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.run(*arguments, **named)

    def examples(self, dtype: torch.dtype, device: torch.device, *, large: bool) -> Iterable[tuple[Any, ...]]:
        return self.cases(dtype, device, LARGE if large else None)

    def candidates(self, width: int) -> Sequence[Tile]:
        return () if self.tiling is None else self.tiling.candidates(width)

    def use_tiles(self, tiles: Mapping[tuple[str, int], Tile]) -> None:
        if self.tiling is not None:
            self.tiling.use(tiles)

    def tuning_examples(self, dtype: torch.dtype, device: torch.device) -> Iterator[tuple[Any, ...]]:
        seen = set()
        for size in TUNED if self.tiling is not None else ():
            arguments = next(iter(self.cases(dtype, device, size)))
            width = width_of(arguments[0].shape)
            if width not in seen:
                seen.add(width)
                yield arguments
