"""Settings of the indexed datasets."""

from attrs import frozen

from neox_core.api import setting


@frozen
class IndexedSettings:
    mmap_warmup: bool = setting(
        False,
        help="Read the dataset once at start, so that later reads hit the page cache.",
        changes="speed",
        origin="gpt-neox",
    )
