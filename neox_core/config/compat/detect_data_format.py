"""`data-impl: infer`: the format of a dataset by the first bytes of its index."""

from pathlib import Path

INFER = "infer"

_FORMATS = {b"MMIDIDX\x00\x00": "mmap", b"TNTIDX\x00\x00": "lazy"}


def data_backend(prefix: str | None) -> str:
    """The name of the backend. A dataset that is not there counts as mmap: that it is missing is said elsewhere."""
    try:
        with Path(f"{prefix}.idx").open("rb") as stream:
            head = stream.read(max(map(len, _FORMATS)))
    except (OSError, ValueError):
        return "mmap"
    return next((name for magic, name in _FORMATS.items() if head.startswith(magic)), "mmap")
