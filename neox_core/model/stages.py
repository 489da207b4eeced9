"""The decoder as a row of layers, each taking what the one before returns: what a pipeline cuts into stages.

Between layers goes the residual stream, [batch, seq, hidden], and beside it what later layers need of the samples: the
tokens where documents in a sample are told apart, and the keys of dropout.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import torch
from attrs import define
from torch import Tensor, nn

from neox_core.model.flex import mask_of_pass
from neox_core.model.linear import ColumnLinear
from neox_core.model.loss import cross_entropy
from neox_core.model.recompute import run_layers
from neox_core.model.scope import Scope, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from neox_core.contracts.model import Position
    from neox_core.model.block import Block
    from neox_core.model.documents import DocumentRules
    from neox_core.model.embedding import Embedding
    from neox_core.model.recompute import Recompute
    from neox_core.model.routing import Routing
    from neox_core.model.sparse import BlockTable
    from neox_core.parallel.tensor import TensorParallel

Passed = tuple[Tensor, ...]
"""(residual stream, tokens where documents part, keys where there is dropout); the embedding gets (tokens, keys)."""


@define(eq=False)
class Feed:
    """What every layer of a rank is built with. dtype: of products; autocast: to it, None where weights are of it.

    sends_keys: for dropout, and for a curriculum whose layers see some of the tokens. routing: of the step.
    """

    position: nn.Module
    tensor: TensorParallel
    dtype: torch.dtype
    autocast: torch.dtype | None
    sends_keys: bool
    documents: DocumentRules | None
    recompute: Recompute | None
    tables: Mapping[int, BlockTable]
    routing: Routing | None = None

    @property
    def sends_tokens(self) -> bool:
        return self.documents is not None

    def casting(self, x: Tensor) -> torch.autocast:
        return torch.autocast(x.device.type, self.autocast, enabled=self.autocast is not None)

    def scope(self, x: Tensor, rest: Passed, *, training: bool) -> Scope:
        """What a layer looks at beside the residual stream `x`; `rest` is what was passed with it."""
        tokens = rest[0] if self.sends_tokens else None
        documents = within = None
        if self.documents is not None and tokens is not None:
            documents, within = self.documents.index(tokens), self.documents.positions(tokens)
        seq = x.shape[1] * (self.tensor.size if self.tensor.sequence_parallel else 1)
        positions = torch.arange(seq, device=x.device) if within is None else within
        keys, routing = self.keys(rest, training=training), self.routing if training else None
        make = partial(prepare, cast("Position", self.position), self.dtype, self.tensor)
        mask = mask_of_pass(documents)
        return Scope(make(positions), keys, documents, within, None, self.tables, routing, make, mask)

    def keys(self, rest: Passed, *, training: bool) -> Tensor | None:
        return rest[-1] if self.sends_keys and training else None


def embed(embedding: Embedding, passed: Passed, feed: Feed) -> Passed:
    """(tokens, keys where there is dropout) -> the residual stream, and what goes with it."""
    tokens, *keys = passed
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    if feed.documents is not None and (within := feed.documents.positions(tokens)) is not None:
        positions = within
    position = cast("Position", feed.position)
    with feed.casting(tokens):
        x = embedding(tokens, positions, position, feed.keys(passed, training=embedding.training))
    return (x, *((tokens,) if feed.sends_tokens else ()), *keys)


def run_stage(functions: Sequence[tuple[Any, bool]], passed: Any, recompute: Recompute | None) -> Any:
    """`passed` through the layers of a stage, each with whether it is a block: those make up the segments."""
    for is_block, some in groupby(functions, key=lambda pair: pair[1]):
        layers = [layer for layer, _ in some]
        if not is_block or recompute is None or not torch.is_grad_enabled():
            passed = _through(layers, passed)
            continue
        for start in range(0, len(layers), recompute.layers):
            segment = partial(_residual, layers[start : start + recompute.layers])
            x, *rest = passed
            passed = (recompute.by(segment, x, *rest), *rest)
    return passed


def _through(layers: Sequence[Any], passed: Any) -> Any:
    for layer in layers:
        passed = layer(passed)
    return passed


def _residual(layers: Sequence[Any], *passed: Tensor) -> Tensor:
    x: Tensor = _through(layers, passed)[0]
    return x


class TransformerLayer(nn.Module):
    """One block, as a layer of a pipeline: the first one that has its weights."""

    def __init__(self, make: Callable[[], Block], layer: int, feed: Feed) -> None:
        super().__init__()
        self.block = make()
        self.layer = layer
        self.feed = feed

    def forward(self, passed: Passed, layer: int | None = None) -> Passed:
        """layer: the place of this pass among all layers, where that is not the first of this block."""
        x, *rest = passed
        with self.feed.casting(x):
            scope = self.feed.scope(x, tuple(rest), training=self.training)
            position = cast("Position", self.feed.position)
            x = run_layers([(self.layer if layer is None else layer, self.block)], x, position, scope)
        return (x, *rest)


class FinalNorm(nn.Module):
    """The last norm."""

    def __init__(self, make: Callable[[], nn.Module], feed: Feed) -> None:
        super().__init__()
        self.norm = make()
        self.feed = feed

    def forward(self, passed: Passed) -> Tensor:
        """-> what the head gets: all positions, on every rank of a tensor group."""
        with self.feed.casting(passed[0]):
            return self.feed.tensor.enter(self.norm(passed[0]))


class Head(ColumnLinear):
    """The output projection of a model whose embedding is not tied; `loss` multiplies by it, a few tokens at a time."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden


def loss(hidden: Tensor, weight: Tensor, labels: Tensor, feed: Feed, *, narrow: bool) -> Tensor:
    """Mean cross-entropy of a micro-batch, see `model.loss.cross_entropy`."""
    with feed.casting(hidden):
        return cross_entropy(hidden, weight, labels, narrow=narrow, tensor=feed.tensor)
