"""The decoder as a row of layers, each of which takes what the one before returns: what a pipeline cuts into stages.

Between layers goes the residual stream, [batch, seq, hidden], and beside it what feed-forwards have given so far, see
`auxiliary`, and what later layers need of the samples: the tokens where documents in a sample are told apart, and the
keys of dropout.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from neox_core.parallel.row import RowLayer
from neox_gpt.attention.flex import mask_of_pass
from neox_gpt.block import Block
from neox_gpt.embedding import Embedding
from neox_gpt.faults import fault_in, require_alike
from neox_gpt.linear import ColumnLinear
from neox_gpt.outputs import DecoderOutputs
from neox_gpt.recompute import run_layers
from neox_gpt.scope import Scope, prepare
from neox_gpt.shape import flops_per_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from neox_core.parallel.row import Passed, Routing
    from neox_gpt.contracts import Position
    from neox_gpt.documents import DocumentRules
    from neox_gpt.model_inputs import Parts


@frozen(eq=False)
class DecoderRow:
    """See `parallel.row.Row`.

    dtype: of products; autocast: to it, None where weights are of it. sends_keys: for dropout, and for a curriculum
    whose layers see some of the tokens.
    """

    parts: Parts
    dtype: torch.dtype
    autocast: torch.dtype | None
    sends_keys: bool

    @property
    def layers(self) -> tuple[RowLayer, ...]:
        shape, parts, table = self.parts.shape, self.parts, self.table
        output = partial(ColumnLinear, shape.hidden_size, shape.vocab_size, parts.tensor, bias=shape.head_bias)
        return (
            RowLayer("Embedding", "embedding", table, self._embed),
            *self._blocks(),
            RowLayer("FinalNorm", "final_norm", parts.norm, self._normalise),
            # The loss multiplies by the output's weight, a few tokens at a time.
            RowLayer("Embedding", "embedding", table, _pass_on)
            if shape.tie_embeddings
            else RowLayer("Head", "head", output, _pass_on),
        )

    @property
    def table(self) -> Callable[[], Embedding]:
        """Makes the embedding."""
        shape, parts = self.parts.shape, self.parts
        return partial(
            Embedding,
            shape.vocab_size,
            shape.hidden_size,
            shape.hidden_dropout,
            parts.tensor,
            sparse_gradients=parts.sparse_gradients,
            multiplier=shape.embedding_multiplier,
        )

    def _blocks(self) -> Iterator[RowLayer]:
        parts = self.parts
        for layer, block in enumerate(parts.shape.layer_order):
            run = partial(self._block, layer)
            yield RowLayer("TransformerLayer", f"layers.{block}", partial(parts.block, block), run, recomputed=True)

    @property
    def draws(self) -> bool:
        return self.parts.shape.has_dropout

    @property
    def flops_per_token(self) -> int:
        return flops_per_token(self.parts.shape, self.parts.shape.seq_length)

    @property
    def documents(self) -> DocumentRules | None:
        return self.parts.documents

    @property
    def shared(self) -> Mapping[str, nn.Module]:
        return {"position": self.parts.position}

    @property
    def shared_is_trained_by_all(self) -> bool:
        """Whether the position has numbers that every layer looks at; those of others are the embedding's alone."""
        prepared = self._position.prepare(torch.arange(1), torch.float32)
        return any(isinstance(each, Tensor) and each.requires_grad for each in tree_leaves(prepared))

    def outputs(self, last: nn.Module, passed: Any) -> DecoderOutputs:
        """See `parallel.row.Row`; autocast is the caller's."""
        hidden, total = passed if isinstance(passed, tuple) else (passed, None)
        weight, parts = cast("Tensor", last.weight), self.parts
        return DecoderOutputs(
            hidden,
            weight,
            parts.tensor,
            parts.narrow_loss,
            total=total,
            auxiliary=parts.shape.auxiliary,
            bias=getattr(last, "bias", None),
            cap=parts.shape.logit_softcap,
        )

    @property
    def _position(self) -> Position:
        return cast("Position", self.parts.position)

    def _embed(self, embedding: nn.Module, passed: Passed, routing: Routing | None) -> Passed:
        """(tokens, keys where there is dropout) -> the residual stream, and what goes with it."""
        documents = self.parts.documents
        tokens, *keys = passed
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        if documents is not None and (within := documents.positions(tokens)) is not None:
            positions = within
        with self._casting(tokens), self._explained():
            x = embedding(tokens, positions, self._position, self._keys(passed, training=embedding.training))
        auxiliary = self.parts.shape.auxiliary
        start = () if auxiliary is None else (auxiliary.start(x),)
        return (x, *start, *((tokens,) if documents is not None else ()), *keys)

    def _block(self, layer: int, block: nn.Module, passed: Passed, routing: Routing | None) -> Passed:
        """layer: the place of this pass among all blocks; a block that is shared has several."""
        x, *rest = passed
        given = [rest.pop(0)] if self.parts.shape.auxiliary is not None else []
        with self._casting(x):
            scope = self._scope(x, tuple(rest), routing, training=block.training)
            x, more = run_layers([(layer, cast("Block", block))], x, self._position, scope)
        return (x, *(each if more is None else each + more for each in given), *rest)

    def _normalise(self, norm: nn.Module, passed: Passed, routing: Routing | None) -> Tensor | Passed:
        """What the output gets: all positions, on every rank of a tensor group; and what feed-forwards have given."""
        with self._casting(passed[0]), self._explained():
            before_last_norm, normed = passed[0], norm(passed[0])
            require_alike(normed, before_last_norm)
            x = self.parts.tensor.enter(normed)
        return x if self.parts.shape.auxiliary is None else (x, passed[1])

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What fails inside the block is blamed on the part that is to blame."""
        try:
            yield
        except Exception as error:
            if fault := fault_in(error, self.parts.shape):
                raise fault from error
            raise

    def _casting(self, x: Tensor) -> torch.autocast:
        return torch.autocast(x.device.type, self.autocast, enabled=self.autocast is not None)

    def _scope(self, x: Tensor, rest: Passed, routing: Routing | None, *, training: bool) -> Scope:
        """What a block looks at beside the residual stream `x`; `rest` is what was passed with it."""
        rules, tensor = self.parts.documents, self.parts.tensor
        documents = within = None
        if rules is not None:
            documents, within = rules.index(rest[0]), rules.positions(rest[0])
        seq = x.shape[1] * (tensor.size if tensor.sequence_parallel else 1)
        positions = torch.arange(seq, device=x.device) if within is None else within
        make = partial(prepare, self._position, self.dtype, tensor)
        return Scope(
            make(positions),
            self._keys(rest, training=training),
            documents,
            within,
            None,
            self.parts.tables,
            routing if training else None,
            make,
            mask_of_pass(documents),
        )

    def _keys(self, rest: Passed, *, training: bool) -> Tensor | None:
        return rest[-1] if self.sends_keys and training else None


def _pass_on(module: nn.Module, passed: Any, routing: Any) -> Any:
    return passed
