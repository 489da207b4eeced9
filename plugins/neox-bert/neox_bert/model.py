"""The encoder: a decoder's blocks, with a table of pieces of text before them and a transform behind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from attrs import evolve, field, frozen
from neox_gpt.api import GPT, DecoderOutputs, DecoderRow, Embedding, linear
from torch import Tensor, nn
from torch.nn import functional

from neox_core.parallel.row import RowLayer

if TYPE_CHECKING:
    from neox_gpt.api import DecodingCache

    from neox_bert.special import Special
    from neox_core.contracts.objective import Run
    from neox_core.parallel.row import Passed, Routing
    from neox_core.parallel.tensor import TensorParallel


@frozen
class Padding:
    """What fills a sample up is a document of its own, which the others do not see. pad: its id."""

    pad: int

    def index(self, tokens: Tensor) -> Tensor:
        """int64 [batch, seq] -> 0 for the text, 1 for what follows it."""
        return (tokens == self.pad).long().cummax(1).values

    def positions(self, tokens: Tensor) -> None:
        """Positions count through the whole sample."""

    def counts(self, tokens: Tensor) -> None:
        """The objective says which labels count."""


class EncoderEmbedding(Embedding):
    """Rows of a table by token, and of a second one by the piece of text that a token is in."""

    def __init__(self, *args: Any, types: int, sep: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self.sep = sep
        self.types = nn.Parameter(torch.empty(types, self.weight.shape[1]))

    def _rows(self, tokens: Tensor) -> Tensor:
        ends = (tokens == self.sep).long()
        piece = (ends.cumsum(1) - ends).clamp(max=len(self.types) - 1)
        return super()._rows(tokens) + functional.embedding(piece, self.types)


class _Projection(nn.Module):
    """`x @ weight.T + bias`."""

    no_weight_decay = frozenset({"bias"})

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Transform(nn.Module):
    """What the states go through before they meet the vocabulary, and the head on the first token.

    out_bias: of the vocabulary, of a tensor-parallel rank its rows. Every rank has all the rest.
    """

    no_weight_decay = frozenset({"bias", "out_bias"})

    def __init__(self, hidden: int, vocab: int, norm: Callable[[], nn.Module], tensor: TensorParallel, *, pairs: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden, hidden))
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.norm = norm()
        self.out_bias = nn.Parameter(torch.zeros(tensor.share(vocab)))
        self.cuts = {} if tensor.size == 1 else {"out_bias": tensor.cut(0, (vocab,))}
        self.pooler = _Projection(hidden, hidden) if pairs else None
        self.pair = _Projection(hidden, 2) if pairs else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """[batch, seq, hidden] -> the same, and logits of the two classes, [batch, 2], or None."""
        pairs = None
        if self.pooler is not None and self.pair is not None:
            pairs = self.pair(self.pooler(x[:, 0]).tanh())
        return self.norm(functional.gelu(linear(x, self.weight, self.bias))), pairs


@frozen(eq=False)
class EncoderOutputs(DecoderOutputs):
    """A decoder's, and `pairs`: logits of the two classes of each sample, [batch, 2]; None without that head."""

    pairs: Tensor | None = field(default=None)

    def at(self, places: Tensor) -> EncoderOutputs:
        """The same of some tokens of each sample alone. places: int64 [batch, number]."""
        wide = places[..., None].expand(-1, -1, self.hidden.shape[-1])
        return evolve(self, hidden=self.hidden.gather(1, wide))


class EncoderTrunk(GPT):
    """See `GPT`: the states of an encoder, without what is made of them. special: ids of special tokens.

    types: rows of the table of pieces.
    """

    def __init__(self, *args: Any, special: Special, types: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self.documents = cast("Any", Padding(special.pad))
        shape = self.shape
        sparse = bool(self.sparse_weights)
        self.embedding = EncoderEmbedding(
            *(shape.vocab_size, shape.hidden_size, shape.hidden_dropout, self.tensor),
            sparse_gradients=sparse,
            multiplier=shape.embedding_multiplier,
            types=types,
            sep=special.sep,
        )
        self.sparse_weights = (self.embedding.weight,) if sparse else ()


class Encoder(EncoderTrunk):
    """See `EncoderTrunk`, with the transform before the vocabulary. pairs: with a head for pairs."""

    def __init__(self, *args: Any, pairs: bool, **more: Any) -> None:
        super().__init__(*args, **more)
        shape, norm = self.shape, cast("Callable[[], nn.Module]", args[1])
        self.transform = Transform(shape.hidden_size, shape.vocab_size, norm, self.tensor, pairs=pairs)

    def loss(
        self, tokens: Tensor, labels: Tensor, keys: Tensor | None = None, *, routing: Routing | None = None
    ) -> Tensor:
        loss: Tensor = self(lambda run: cast("Run", run)(tokens).cross_entropy(labels), keys, routing=routing)
        return loss

    def outputs(self, tokens: Tensor, keys: Tensor | None, routing: Routing | None) -> EncoderOutputs:
        x, total = self._states(tokens, None, keys, routing)
        hidden, pairs = self.transform(x)
        plain = DecoderOutputs(self.tensor.enter(hidden), self.output_weight, self.tensor, self.narrow_loss)
        return EncoderOutputs(
            plain.hidden,
            plain.weight,
            self.tensor,
            self.narrow_loss,
            loss=self.kernels.get("cross_entropy") or plain.loss,
            total=total,
            auxiliary=self.shape.auxiliary,
            bias=self.transform.out_bias,
            cap=self.shape.logit_softcap,
            pairs=pairs,
        )

    def logits(self, tokens: Tensor, cache: DecodingCache | None = None) -> Tensor:
        """int64 [batch, seq] -> [batch, seq, vocab]."""
        return self.outputs(tokens, None, None).logits()

    @property
    def flops_per_token(self) -> int:
        return super().flops_per_token + 6 * self.shape.hidden_size**2


@frozen(eq=False)
class EncoderRow(DecoderRow):
    """See `DecoderRow`; the others as of `Encoder`."""

    special: Special
    types: int
    pairs: bool

    @property
    def table(self) -> Callable[[], Embedding]:
        plain = cast("partial[Embedding]", super().table)
        return partial(EncoderEmbedding, *plain.args, **plain.keywords, types=self.types, sep=self.special.sep)

    @property
    def layers(self) -> tuple[RowLayer, ...]:
        *before, last = super().layers
        shape, parts = self.parts.shape, self.parts
        make = partial(Transform, shape.hidden_size, shape.vocab_size, parts.norm, parts.tensor, pairs=self.pairs)
        return (*before, RowLayer("Transform", "transform", make, self._transform), last)

    @property
    def documents(self) -> Any:
        return self.parts.documents

    @property
    def flops_per_token(self) -> int:
        return super().flops_per_token + 6 * self.parts.shape.hidden_size**2

    def _normalise(self, norm: nn.Module, passed: Passed, routing: Routing | None) -> Any:
        with self._casting(passed[0]):
            x = norm(passed[0])
        return (x,) if self.parts.shape.auxiliary is None else (x, passed[1])

    def _transform(self, module: nn.Module, passed: Passed, routing: Routing | None) -> Passed:
        """The states, the bias of the vocabulary, and what there is of pairs and of what feed-forwards have given."""
        x, *total = passed
        with self._casting(x):
            hidden, pairs = module(x)
            hidden = self.parts.tensor.enter(hidden)
        return (hidden, cast("Tensor", module.out_bias), *(() if pairs is None else (pairs,)), *total)

    def outputs(self, last: nn.Module, passed: Any) -> EncoderOutputs:
        hidden, bias, *rest = passed
        pairs = rest.pop(0) if self.pairs else None
        parts = self.parts
        if isinstance(last, EncoderEmbedding):  # whose stage adds its gradients to the first one's, of all tables
            bias = bias + 0.0 * last.types.sum()
        return EncoderOutputs(
            hidden,
            cast("Tensor", last.weight),
            parts.tensor,
            parts.narrow_loss,
            total=rest[0] if rest else None,
            auxiliary=parts.shape.auxiliary,
            bias=bias,
            cap=parts.shape.logit_softcap,
            pairs=pairs,
        )


def padded(row_or_parts: Any, special: Special) -> Any:
    """The parts of a model whose samples are filled up."""
    return evolve(row_or_parts, documents=Padding(special.pad))
