"""Kinds that can be offered and listed, and that this version of the core does not yet use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class CheckpointFormat(Protocol):
    """`target`: reads a foreign training checkpoint without running anything in it."""

    def recognises(self, folder: Path) -> bool: ...

    def read(self, folder: Path) -> Iterator[tuple[str, Tensor]]:
        """(our parameter name, tensor) of every weight."""
        ...
