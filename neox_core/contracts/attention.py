"""Block-sparse attention: what a model needs of a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

from neox_core import old_paths


@frozen
class SparseUse:
    """What a model needs of a kernel of `block_sparse_attention`, besides shape, dtype and device.

    * blocks: sides of the blocks of its layouts, in tokens.
    * bias: whether its position adds a bias to the scores.
    * dropout: whether training drops attention probabilities.
    """

    blocks: tuple[int, ...]
    bias: bool = False
    dropout: bool = False


class SparseKernel(Protocol):
    """What a kernel of `block_sparse_attention` has besides; it is called like `model.blocked.blocked_attention`."""

    def why_not_for(self, use: SparseUse) -> tuple[str, ...]:
        """The reasons why the kernel cannot do what a model needs; empty: it can. Called when the model is built."""
        ...


if not TYPE_CHECKING:  # else every name would be there, of any type

    def __getattr__(name: str) -> Any:
        return old_paths.moved(__name__, name)
