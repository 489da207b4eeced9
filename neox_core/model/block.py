"""One layer of the decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from neox_core.model.attention import Attention
from neox_core.model.dropout import attended_site, drop, mlp_site
from neox_core.model.mlp import MLP
from neox_core.parallel.tensor import ALONE

if TYPE_CHECKING:
    from neox_core.contracts.model import Activation, Position
    from neox_core.model.cache import KeyValueCache
    from neox_core.model.shape import ModelShape
    from neox_core.parallel.tensor import TensorParallel


class Block(nn.Module):
    """[batch, seq, hidden] -> [batch, seq, hidden], normalised before each sublayer.

    serial:   x = x + attention(norm(x));  x = x + mlp(norm(x))
    parallel: x = x + attention(norm(x)) + mlp(norm(x))           GPT-J's form, each sublayer with a norm of its own
    residual_post_norm: the serial form with the normalised tensor as residual.
    With sequence parallelism a rank has some of the positions.
    """

    def __init__(
        self,
        shape: ModelShape,
        layer: int,
        norm: Callable[[], nn.Module],
        activation: Activation,
        tensor: TensorParallel = ALONE,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.tensor = tensor
        self.parallel = shape.parallel_residual
        self.residual_post_norm = shape.residual_post_norm
        self.dropout = shape.hidden_dropout
        self.attention_norm = norm()
        self.attention = Attention(shape, layer, tensor)
        self.mlp_norm = norm()
        self.mlp = MLP(shape, activation, tensor)

    def forward(
        self,
        x: Tensor,
        position: Position,
        prepared: Any,
        cache: KeyValueCache | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """keys: of the samples, for dropout; None: none."""
        normed = self.attention_norm(x)
        attended = self.attention(normed, position, prepared, cache, keys)
        attended = self._drop(attended, keys, attended_site(self.layer))
        if self.parallel:
            return x + attended + self._drop(self.mlp(self.mlp_norm(x)), keys, mlp_site(self.layer))
        x = (normed if self.residual_post_norm else x) + attended
        normed = self.mlp_norm(x)
        residual = normed if self.residual_post_norm else x
        return residual + self._drop(self.mlp(normed), keys, mlp_site(self.layer))

    def _drop(self, x: Tensor, keys: Tensor | None, site: int) -> Tensor:
        return drop(x, self.dropout, keys, site, self.tensor.first_position(x.shape[1]))
