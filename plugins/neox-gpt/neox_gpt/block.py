"""One layer of the decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from neox_core.parallel.tensor import ALONE
from neox_gpt.auxiliary import fault_of, names_of
from neox_gpt.changes import LinearChange
from neox_gpt.dropout import attended_site, drop, mlp_site
from neox_gpt.faults import require_alike, shown
from neox_gpt.half_built import remove_half_built
from neox_gpt.joined import enter_both
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
    norm_place: both: x = x + norm(attention(norm(x))), and so for the MLP; after: x = x + norm(attention(x)).
    With sequence parallelism a rank has some of the positions. mixer, feed_forward: make what keeps `contracts.Mixer`
    and `contracts.FeedForward`; whatever the mixer is, its parameters are those of `attention`. index: among blocks.
    joined: what they make has got `joined.within` for `tensor`.
    """

    def __init__(
        self,
        shape: ModelShape,
        norm: Callable[[], nn.Module],
        mixer: Callable[[], Mixer],
        feed_forward: Callable[[], FeedForward],
        tensor: TensorParallel = ALONE,
        index: int = 0,
        *,
        joined: bool = False,
    ) -> None:
        super().__init__()
        self.tensor = tensor
        self.joined = joined
        self.shape = shape
        self.index = index
        self.kernels: Mapping[str, Callable[..., Any]] = {}
        self.parallel = shape.parallel_residual
        self.residual_post_norm = shape.residual_post_norm
        self.dropout = shape.hidden_dropout
        before, after = shape.norm_place != "after", shape.norm_place != "before"
        self.attention_norm = norm() if before else None
        self.attention: Any = mixer()
        self.attention_post_norm = norm() if after else None
        self.adds_bias_apart = hasattr(self.attention, "last_bias")
        self.shares_norm = shape.shared_norm
        self.mlp_norm = norm() if before and not shape.shared_norm else None
        self.mlp: Any = feed_forward()
        self.mlp_post_norm = norm() if after else None
        self.last_bias_apart = hasattr(self.mlp, "last_bias")
        self.gives = frozenset(names_of(self.mlp))
        self.auxiliary = shape.auxiliary if self.gives else None
        self.changes: tuple[LinearChange, ...] = ()

    def find_changes(self) -> None:
        """Tell the model changes within, once they are there, which samples each pass is of."""
        self.changes = tuple(each for each in self.modules() if isinstance(each, LinearChange))

    def owner_of(self, name: str) -> str:
        """Which component a module within is of, by its name in the block; "" where that is not known."""
        plan, part = self.shape.plan, name.partition(".")[0]
        if plan is None:
            return ""
        if part == "mlp":
            return (plan.activation if name == "mlp.activation" else plan.feed_forward(self.index)).owner
        return plan.mixer(self.index).owner if part == "attention" else plan.norm.owner if "norm" in part else ""

    def forward(
        self, x: Tensor, position: Position, scope: Scope = PLAIN, layer: int = 0
    ) -> Tensor | tuple[Tensor, Tensor]:
        """layer: the place of this pass among all layers; a block that is shared has several.

        Where the feed-forward gives losses or metrics, they follow as a vector, see `auxiliary`.
        """
        if scope.tables:
            scope.tables.get(layer)  # binds a compiled layer to its number before its graph ends at blocked attention
        for change in self.changes:
            change.for_samples(scope.keys, layer)
        if self.joined:
            return self._joined(x, position, scope, layer)
        # The last bias of a sublayer is added with the residual where a kernel does that and no norm is between.
        apart = "bias_dropout_add" in self.kernels and self.attention_post_norm is None
        normed = x if self.attention_norm is None else self.attention_norm(x)
        if self.adds_bias_apart:
            attended, bias = self.attention(normed, position, scope, layer, bias=not apart), self.attention.last_bias
        else:
            attended, bias = self.attention(normed, position, scope, layer), None
        settled = attended
        if self.attention_post_norm is not None:
            settled, bias = self.attention_post_norm(attended), None
        residual = normed if self.residual_post_norm else x
        site = attended_site(layer)
        if self.parallel or self.shares_norm:
            residual = self._add(residual, settled, bias, scope.keys, site)
            normed = normed if self.mlp_norm is None else self.mlp_norm(x)
        else:
            if not apart and self.mlp_norm is not None and getattr(self.mlp_norm, "adds_residual", False):
                dropped = drop(settled, self.dropout, scope.keys, site, self.tensor.first_position(x.shape[1]))
                normed, after = self.mlp_norm(dropped, residual)
            else:
                after = self._add(residual, settled, bias, scope.keys, site)
                normed = after if self.mlp_norm is None else self.mlp_norm(after)
            residual = normed if self.residual_post_norm else after
        fed = self.mlp(normed, bias=not apart) if self.last_bias_apart else self.mlp(normed)
        numbers = None
        if self.auxiliary is not None:
            fed, numbers = fed
            if numbers.keys() != self.gives:
                raise ValueError(f"the feed-forward {fault_of(self.mlp, numbers)}")
        bias = self.mlp.last_bias if self.last_bias_apart else None
        settled_too = fed
        if self.mlp_post_norm is not None:
            settled_too, bias = self.mlp_post_norm(fed), None
        after = self._add(residual, settled_too, bias, scope.keys, mlp_site(layer))
        if self.auxiliary is None or numbers is None:
            return after
        return after, self.auxiliary.vector(numbers, after, self.tensor)

    def _joined(self, x: Tensor, position: Position, scope: Scope, layer: int) -> Tensor:
        """The parallel form where one sum over the tensor ranks is of both sublayers."""
        normed = cast("nn.Module", self.attention_norm)(x)
        if self.mlp_norm is None:
            normed = also = self.tensor.enter(normed)
        else:
            normed, also = enter_both(normed, self.mlp_norm(x), self.tensor)
        attended = self.attention(normed, position, scope, layer, bias=False)
        total = self.tensor.leave(attended + self.mlp(also, bias=False))
        biases = [each for each in (self.attention.last_bias, self.mlp.last_bias) if each is not None]
        bias = sum(biases[1:], start=biases[0]) if biases else None
        if bias is not None and "bias_dropout_add" not in self.kernels:
            total = total + bias.to(total.dtype)
        return self._add(x, total, bias, scope.keys, mlp_site(layer))

    def _add(self, residual: Tensor, x: Tensor, bias: Tensor | None, keys: Tensor | None, site: int) -> Tensor:
        """The residual stream after a sublayer whose result is `x`, without its last bias where a kernel adds it."""
        if x.shape != residual.shape:  # which would be repeated to fit
            raise ValueError(f"a part of the model gives {shown(x)} for {shown(residual)}")
        first = self.tensor.first_position(x.shape[1])
        fused = self.kernels.get("bias_dropout_add")
        if fused is not None:
            return fused(x, bias, residual, self.dropout, keys, site, first)
        made = residual + drop(x, self.dropout, keys, site, first)
        require_alike(made, residual)
        return made


def compile_layers(model: nn.Module, backend: str, *, on: bool = True) -> None:
    """Have every layer compiled by torch.compile when it next runs in training, or no longer.

    The number of the layer is a variable from the first one on: were there another graph of the first, a recomputation
    by that of the others would find that other tensors were saved.
    """
    from torch.compiler import config

    if on:
        remove_half_built()
    if on and _NUMBER not in config.dynamic_sources.split(","):
        config.dynamic_sources = ",".join(filter(None, (config.dynamic_sources, _NUMBER)))
    for module in model.modules():
        if isinstance(module, Block):
            module.compile(backend=backend, disable=not on)


_NUMBER = "L['layer']"
"""torch's name of that argument of `Block.forward`."""
