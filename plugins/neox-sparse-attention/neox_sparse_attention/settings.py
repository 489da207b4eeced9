"""Keys of the block `sparse_attention`, as in DeepSpeed's documents; each layout has those that it reads."""

from typing import Any, Literal

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting


def _counts(instance: Any, field: Any, value: tuple[int, ...]) -> None:
    if not value or min(value) < 1:
        raise ValueError(f"must be a list of whole numbers above 0, not {list(value)}")


def _indices(instance: Any, field: Any, value: tuple[int, ...]) -> None:
    if any(index < 0 for index in value) or len(set(value)) != len(value):
        raise ValueError(f"must be a list of different block numbers, counted from 0, not {list(value)}")


def _key(default: Any, *, help: str, **more: Any) -> Any:
    """A key of DeepSpeed's block."""
    return setting(default, help=help, origin="deepspeed", **more)


def _direction() -> Any:
    return _key(
        "unidirectional",
        help="Whether a block sees only what is before it, as a decoder must, or both sides, as an encoder must.",
    )


def _per_head() -> Any:
    return _key(False, help="Let the heads have layouts of their own.")


def _horizontal() -> Any:
    return _key(False, help="Global blocks also look at every block; only with attention: bidirectional.")


def _global_indices() -> Any:
    return _key((0,), help="Numbers of the blocks that every block looks at.", unit="blocks", check=_indices)


def _global_ends() -> Any:
    return _key(
        None, help="Ends, not included, that make each of global_block_indices a range of blocks.", unit="blocks"
    )


def _sliding(*aliases: str) -> Any:
    return _key(
        3,
        help="Width of the window around each block: itself and half of the others on either side.",
        unit="blocks",
        check=v.ge(1),
        aliases=aliases,
    )


@frozen
class DenseSettings:
    block: int = _key(16, help="Side of a square block of the attention matrix.", unit="tokens", check=v.ge(1))


@frozen
class FixedSettings(DenseSettings):
    different_layout_per_head: bool = _per_head()
    num_local_blocks: int = _key(4, help="Blocks of a local window.", unit="blocks", check=v.ge(1))
    num_global_blocks: int = _key(
        1, help="Blocks in a row, in each window, that later blocks look at.", unit="blocks", check=v.ge(1)
    )
    attention: Literal["unidirectional", "bidirectional"] = _direction()
    horizontal_global_attention: bool = _horizontal()
    num_different_global_patterns: int = _key(
        1, help="Places in a window that the heads' global blocks take turns in.", check=v.ge(1)
    )


@frozen
class VariableSettings(DenseSettings):
    different_layout_per_head: bool = _per_head()
    num_random_blocks: int = _key(0, help="Blocks drawn at random for each block.", unit="blocks", check=v.ge(0))
    local_window_blocks: tuple[int, ...] = _key(
        (4,), help="Sizes of the local windows in turn; the last one repeats.", unit="blocks", check=_counts
    )
    global_block_indices: tuple[int, ...] = _global_indices()
    global_block_end_indices: tuple[int, ...] | None = _global_ends()
    attention: Literal["unidirectional", "bidirectional"] = _direction()
    horizontal_global_attention: bool = _horizontal()


@frozen
class BigBirdSettings(DenseSettings):
    different_layout_per_head: bool = _per_head()
    num_random_blocks: int = _key(1, help="Blocks drawn at random for each block.", unit="blocks", check=v.ge(0))
    num_sliding_window_blocks: int = _sliding()
    num_global_blocks: int = _key(
        1, help="Blocks at the beginning that see all and are seen by all.", unit="blocks", check=v.ge(0)
    )


@frozen
class BSLongformerSettings(DenseSettings):
    num_sliding_window_blocks: int = _sliding()
    global_block_indices: tuple[int, ...] = _global_indices()
    global_block_end_indices: tuple[int, ...] | None = _global_ends()


@frozen
class LocalSettings(DenseSettings):
    num_sliding_window_blocks: int = _sliding("num_local_blocks")  # as GPT-NeoX calls it here
