"""Parts of the model: norms, activations, positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Norm(Protocol):
    """`target(dim: int, settings) -> torch.nn.Module`.

    A module from [..., dim] to [..., dim], with any number of leading dimensions or none, same device; the dtype is
    that of the input, whatever the parameters have. Statistics are over the last dimension, in fp32 or better, which is
    fp64 for an input in fp64; for an input of zeros result and gradient are finite. The input is left as it is.
    Deterministic: two calls on the same input give the same bits. The gradient is that of the function. Parameters that
    weight decay must leave alone are named in the class attribute `no_weight_decay` (of the module's own parameters,
    e.g. {"weight", "bias"}).

    Planner: `(dim: int, settings) -> dict`, the shape of each parameter by name. Without one the number of parameters
    is not known before a start.
    """

    no_weight_decay: frozenset[str]

    def __call__(self, x: Tensor) -> Tensor: ...


class Activation(Protocol):
    """`target(settings) -> Activation`.

    Elementwise when `gated` is False: [..., width] -> [..., width]. When `gated` is True it gets value and gate side
    by side, [..., 2 * width] with the value in the first half, and returns [..., width], proportional to the value.
    Same dtype, finite for every finite input, and the input is left as it is. Deterministic: two calls on the same
    input give the same bits. The gradient is that of the function. No parameters, no state.

    Planner: `(settings) -> bool`, whether it is gated.
    """

    gated: bool

    def __call__(self, x: Tensor) -> Tensor: ...


@frozen
class PositionShape:
    """The numbers that a position needs. head_dim in elements, max_positions in tokens."""

    hidden_size: int
    num_heads: int
    head_dim: int
    max_positions: int


class ScoreBias(Protocol):
    """What is added to the scaled score of a query and a key, from the head and the positions of both.

    All three are int64 and broadcast to one shape, which the result has or broadcasts to: scalars in FlexAttention on a
    GPU, [heads, 1, 1], [rows, 1] and [keys] where a few rows of queries are computed at a time. A key is never ahead of
    the query. `head` counts those of the whole model. The result is floating point and finite. Only distance counts,
    also beyond the prepared positions, and no tensor of the whole [heads, seq, seq] is made.
    """

    def __call__(self, head: Tensor, query: Tensor, key: Tensor, /) -> Tensor: ...


class Position(Protocol):
    """`target(shape: PositionShape, settings) -> torch.nn.Module` with these four methods.

    A position that does nothing at a stage returns its input there. `positions` is int64, [seq] or [batch, seq]: the
    index of each token in its document, from 0 to below `max_positions`. It may start anywhere and begin again at 0: a
    cached generation passes one token with its index, a packed sample one document after the other, a part of a
    sequence its own indices; each sample may have others, and [seq] means the same for all samples. What a token gets
    follows from its own index alone. Deterministic: two calls give the same bits. The gradient is that of the function.
    Weight matrices may be left empty: the model draws every parameter of two or more dimensions. Parameters that weight
    decay must leave alone are named in the class attribute `no_weight_decay`.

    Planner: `(shape: PositionShape, settings) -> dict`, the shape of each parameter by name.
    """

    no_weight_decay: frozenset[str]

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Once, before the first block: [batch, seq, hidden] -> the same shape and dtype; the input stays as it is."""
        ...

    def prepare(self, positions: Tensor, dtype: torch.dtype) -> Any:
        """Once a forward pass: what `rotate` and `score_bias` need (such as cos and sin), shared by all layers: a
        tensor, a tuple of tensors, or None if nothing. It is the only place where they meet trained parameters.
        """
        ...

    def rotate(self, query: Tensor, key: Tensor, prepared: Any) -> tuple[Tensor, Tensor]:
        """In each layer: query and key [batch, heads, seq, head_dim] -> the same shapes and dtypes.

        A tensor-parallel rank passes its share of the heads, and a key may have fewer heads than the query: all heads
        are treated alike.
        The inputs are views of one tensor and are left as they are. What is told to the scores is distance: moving all
        positions by one offset leaves every product of a query and a key as it was.
        """
        ...

    def score_bias(self, prepared: Any) -> ScoreBias | None:
        """In each layer: what is added to the scores, as a function of head, query and key; None if nothing."""
        ...
