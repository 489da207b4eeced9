"""One layer of the decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional as F

from neox_core.model.attention import Attention
from neox_core.model.mlp import MLP

if TYPE_CHECKING:
    from neox_core.contracts.model import Activation, Position
    from neox_core.model.cache import KeyValueCache
    from neox_core.model.shape import ModelShape


class Block(nn.Module):
    """[batch, seq, hidden] -> [batch, seq, hidden], normalised before each sublayer.

    serial:   x = x + attention(norm(x));  x = x + mlp(norm(x))
    parallel: x = x + attention(norm(x)) + mlp(norm(x))           GPT-J's form, each sublayer with a norm of its own
    residual_post_norm: the serial form with the normalised tensor as residual.
    """

    def __init__(self, shape: ModelShape, layer: int, norm: Callable[[], nn.Module], activation: Activation) -> None:
        super().__init__()
        self.parallel = shape.parallel_residual
        self.residual_post_norm = shape.residual_post_norm
        self.dropout = shape.hidden_dropout
        self.attention_norm = norm()
        self.attention = Attention(shape, layer)
        self.mlp_norm = norm()
        self.mlp = MLP(shape, activation)

    def forward(self, x: Tensor, position: Position, prepared: Any, cache: KeyValueCache | None = None) -> Tensor:
        normed = self.attention_norm(x)
        attended = self._drop(self.attention(normed, position, prepared, cache))
        if self.parallel:
            return x + attended + self._drop(self.mlp(self.mlp_norm(x)))
        x = (normed if self.residual_post_norm else x) + attended
        normed = self.mlp_norm(x)
        return (normed if self.residual_post_norm else x) + self._drop(self.mlp(normed))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)
