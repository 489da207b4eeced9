"""Block-sparse attention: which blocks of keys a block of queries attends to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor


@frozen
class LayoutShape:
    """What a layout is made for: blocks of a sequence, attention heads, the layer (from 0), the seed of the run.

    causal: no token sees what comes after it, as in every model that is trained here.
    """

    num_blocks: int
    num_heads: int
    layer: int = 0
    seed: int = 0
    causal: bool = True


class SparseLayout(Protocol):
    """`target(shape: LayoutShape, settings) -> bool [heads, query blocks, key blocks]`, on the CPU.

    True where a block of queries attends to a block of keys. A pure function of its arguments: what is random follows
    from (seed, layer, head). Lower triangular where the shape is causal; what is seen within a block of the diagonal
    is for the executor. The settings have `block`, the side of a block in tokens.
    """

    def __call__(self, shape: LayoutShape, settings: Any) -> Tensor: ...
