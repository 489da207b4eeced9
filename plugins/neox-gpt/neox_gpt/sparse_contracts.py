"""Block-sparse attention: the layout that says which blocks a query sees, and a kernel that follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor


@frozen
class LayoutShape:
    """The numbers that a layout needs.

    * num_blocks: blocks of a sequence.
    * num_heads: attention heads of the whole model.
    * layer: index of the layer, from 0.
    * seed: seed of the run.
    * causal: no token attends to later tokens, as in a decoder.
    """

    num_blocks: int
    num_heads: int
    layer: int = 0
    seed: int = 0
    causal: bool = True


class SparseLayout(Protocol):
    """`target(shape: LayoutShape, settings) -> bool [heads, query blocks, key blocks]`, on the CPU.

    * True where a block of queries attends to a block of keys. Lower triangular where the shape is causal; the code
      that computes attention then masks within a block on the diagonal. Elsewhere a token attends to all of a block.
    * It is a pure function of its arguments: random blocks follow from (seed, layer, head), and it does not use torch's
      own generator.
    * The settings have `block`, the side of a block in tokens.
    """

    def __call__(self, shape: LayoutShape, settings: Any) -> Tensor: ...


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
    """What a kernel of `block_sparse_attention` has besides; it is called like
    `neox_gpt.attention.blocked.blocked_attention`.
    """

    def why_not_for(self, use: SparseUse) -> tuple[str, ...]:
        """The reasons why the kernel cannot do what a model needs; empty: it can. Called when the model is built."""
        ...
