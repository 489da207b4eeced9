"""Kinds that can be offered and listed, and that this version of the core does not yet use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Kernel(Protocol):
    """`target`: an object with `why_not` that is called like the reference of its op.

    `why_not` gives the reasons why it cannot run; empty means that it can. It looks at nothing but its arguments.
    Equal to the reference to the tolerance that its documentation states, forward and backward.
    """

    def why_not(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[str, ...]: ...

    def __call__(self, *args: Any) -> Any: ...


class CheckpointFormat(Protocol):
    """`target`: reads a foreign training checkpoint without running anything in it."""

    def recognises(self, folder: Path) -> bool: ...

    def read(self, folder: Path) -> Iterator[tuple[str, Tensor]]:
        """(our parameter name, tensor) of every weight."""
        ...
