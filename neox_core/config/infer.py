"""`data-impl: infer`: the format of a dataset by the first bytes of its index."""

from pathlib import Path

MMAP_MAGIC = b"MMIDIDX\x00\x00"
LAZY_MAGIC = b"TNTIDX\x00\x00"


def data_backend(prefix: str | None) -> str:
    """The name of the backend: mmap, or lazy for the older layout.

    A dataset that is not there counts as mmap: that it is missing is said elsewhere.
    """
    if not prefix:
        return "mmap"
    try:
        with Path(f"{prefix}.idx").open("rb") as stream:
            magic = stream.read(len(MMAP_MAGIC))
    except (OSError, ValueError):
        return "mmap"
    return "lazy" if magic.startswith(LAZY_MAGIC) else "mmap"
