"""What the tokens of one forward pass have in common, whichever layer they are in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen
from torch import Tensor
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from neox_core.parallel.row import Routing
    from neox_core.parallel.tensor import TensorParallel
    from neox_gpt.attention.cache import DecodingCache
    from neox_gpt.attention.sparse import BlockTable
    from neox_gpt.contracts import Position


def prepare(position: Position, dtype: torch.dtype, tensor: TensorParallel, positions: Tensor) -> Any:
    """What a position prepares of int64 [batch, seq] or [seq], for products in `dtype`."""

    def for_all_heads(prepared: Tensor) -> Tensor:
        # Each rank of a tensor group sees the gradient of its own heads: what is trained needs the sum of them.
        return tensor.copy(prepared) if prepared.requires_grad else prepared

    return tree_map_only(Tensor, for_all_heads, position.prepare(positions, dtype))


def _nothing(positions: Tensor) -> None:
    """Of a position that prepares nothing."""


@frozen(eq=False)
class Scope:
    """Made once a pass and read by every layer.

    prepared: what the position's `prepare` returned. keys: of the samples, for dropout, int64 [batch]; None: none.
    documents: int64 [batch, seq], tokens attend within an equal number only; None: a sample is one document.
    positions: int64 [batch, seq], of each token in its document; None: 0, 1, 2 ... in every sample.
    cache: what layers keep of the tokens before these; with it, a sample is one document.
    tables: by layer, the blocks of keys that its queries see; all others see everything before them.
    routing: the layers that see some of the tokens, in training; None: all layers see all. prepare: positions, int64
    [batch, tokens], to what is `prepared` for them. mask: `documents` as FlexAttention takes them, on a GPU.
    """

    prepared: Any = None
    keys: Tensor | None = None
    documents: Tensor | None = None
    positions: Tensor | None = None
    cache: DecodingCache | None = None
    tables: Mapping[int, BlockTable] = field(factory=dict)
    routing: Routing | None = None
    prepare: Callable[[Tensor], Any] = _nothing
    mask: Any = None

    def state(self, layer: int) -> dict[str, Tensor] | None:
        """What a layer keeps of the tokens before these, to read and to change; None: there are none before."""
        return None if self.cache is None else self.cache.state(layer)


PLAIN = Scope()
"""One document from its first token on, no dropout, nothing prepared."""
