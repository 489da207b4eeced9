"""Block-sparse attention: which blocks of keys a block of queries attends to, and what a model asks of a kernel."""

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
    from (seed, layer, head), and torch's own generator is left as it is. Lower triangular where the shape is causal;
    what is seen within a block of the diagonal is for the executor. The settings have `block`, the side of a block in
    tokens.
    """

    def __call__(self, shape: LayoutShape, settings: Any) -> Tensor: ...


@frozen
class SparseUse:
    """What a model asks of a kernel of `block_sparse_attention` besides shape, dtype and device.

    blocks: sides of the blocks of its layouts, in tokens. bias: its position adds to the scores. dropout: training
    drops attention probabilities.
    """

    blocks: tuple[int, ...]
    bias: bool = False
    dropout: bool = False


class SparseKernel(Protocol):
    """What a kernel of `block_sparse_attention` has besides; it is called like `model.blocked.blocked_attention`."""

    def why_not_for(self, use: SparseUse) -> tuple[str, ...]:
        """The reasons why it cannot do what a model asks of it; empty: it can. Asked when the model is built."""
        ...
