"""One layer of the decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from neox_core.parallel.tensor import ALONE
from neox_gpt.auxiliary import names_of
from neox_gpt.changes import LinearChange
from neox_gpt.dropout import attended_site, drop, mlp_site
from neox_gpt.scope import PLAIN, Scope

if TYPE_CHECKING:
    from neox_core.parallel.tensor import TensorParallel
    from neox_gpt.contracts import FeedForward, Mixer, Position
    from neox_gpt.shape import ModelShape


class Block(nn.Module):
    """[batch, seq, hidden] -> [batch, seq, hidden], normalised before each sublayer.

    serial:   x = x + attention(norm(x));  x = x + mlp(norm(x))
    parallel: x = x + attention(norm(x)) + mlp(norm(x))    GPT-NeoX's `gpt-j-residual`, each sublayer with a norm
    shared_norm: the parallel form with one norm for both, as in GPT-J itself.
    residual_post_norm: the serial form with the normalised tensor as residual.
    With sequence parallelism a rank has some of the positions. mixer, feed_forward: make what keeps `contracts.Mixer`
    and `contracts.FeedForward`; whatever the mixer is, its parameters are those of `attention`.
    """

    def __init__(
        self,
        shape: ModelShape,
        norm: Callable[[], nn.Module],
        mixer: Callable[[], Mixer],
        feed_forward: Callable[[], FeedForward],
        tensor: TensorParallel = ALONE,
    ) -> None:
        super().__init__()
        self.tensor = tensor
        self.kernels: Mapping[str, Callable[..., Any]] = {}
        self.parallel = shape.parallel_residual
        self.residual_post_norm = shape.residual_post_norm
        self.dropout = shape.hidden_dropout
        self.attention_norm = norm()
        self.attention: Any = mixer()
        self.adds_bias_apart = hasattr(self.attention, "last_bias")
        self.mlp_norm = None if shape.shared_norm else norm()
        self.mlp: Any = feed_forward()
        self.last_bias_apart = hasattr(self.mlp, "last_bias")
        self.auxiliary = shape.auxiliary if names_of(self.mlp) else None
        self.changes: tuple[LinearChange, ...] = ()

    def find_changes(self) -> None:
        """Tell the model changes within, once they are there, which samples each pass is of."""
        self.changes = tuple(each for each in self.modules() if isinstance(each, LinearChange))

    def forward(
        self, x: Tensor, position: Position, scope: Scope = PLAIN, layer: int = 0
    ) -> Tensor | tuple[Tensor, Tensor]:
        """layer: the place of this pass among all layers; a block that is shared has several.

        Where the feed-forward gives losses or metrics, they follow as a vector, see `auxiliary`.
        """
        for change in self.changes:
            change.for_samples(scope.keys, layer)
        apart = "bias_dropout_add" in self.kernels  # the last bias of a sublayer is then added with the residual
        normed = self.attention_norm(x)
        if self.adds_bias_apart:
            attended, bias = self.attention(normed, position, scope, layer, bias=not apart), self.attention.last_bias
        else:
            attended, bias = self.attention(normed, position, scope, layer), None
        residual = normed if self.residual_post_norm else x
        site = attended_site(layer)
        if self.parallel or self.mlp_norm is None:
            residual = self._add(residual, attended, bias, scope.keys, site)
            normed = normed if self.mlp_norm is None else self.mlp_norm(x)
        else:
            if not apart and getattr(self.mlp_norm, "adds_residual", False):
                dropped = drop(attended, self.dropout, scope.keys, site, self.tensor.first_position(x.shape[1]))
                normed, after = self.mlp_norm(dropped, residual)
            else:
                after = self._add(residual, attended, bias, scope.keys, site)
                normed = self.mlp_norm(after)
            residual = normed if self.residual_post_norm else after
        fed = self.mlp(normed, bias=not apart) if self.last_bias_apart else self.mlp(normed)
        numbers = None
        if self.auxiliary is not None:
            fed, numbers = fed
        bias = self.mlp.last_bias if self.last_bias_apart else None
        x = self._add(residual, fed, bias, scope.keys, mlp_site(layer))
        if self.auxiliary is None or numbers is None:
            return x
        return x, self.auxiliary.vector(numbers, x, self.tensor)

    def _add(self, residual: Tensor, x: Tensor, bias: Tensor | None, keys: Tensor | None, site: int) -> Tensor:
        """The residual stream after a sublayer whose result is `x`, without its last bias where a kernel adds it."""
        first = self.tensor.first_position(x.shape[1])
        fused = self.kernels.get("bias_dropout_add")
        if fused is not None:
            return fused(x, bias, residual, self.dropout, keys, site, first)
        return residual + drop(x, self.dropout, keys, site, first)
