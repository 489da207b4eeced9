"""The backend that the index file names by its magic bytes."""

from __future__ import annotations

from neox_data_indexed.mmap import MmapBackend


class InferBackend(MmapBackend):
    """Reads what the index says it is: `MMIDIDX` so far; the older `TNTIDX` is refused by its name. Writes mmap."""
