"""The decoder: embeddings, blocks, a last norm, and the projection to the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve
from torch import Tensor, nn

from neox_core.contracts.objective import IGNORED
from neox_core.parallel.sample_keys import mix
from neox_core.parallel.tensor import ALONE
from neox_gpt.attention.attention import Attention
from neox_gpt.attention.cache import DecodingCache
from neox_gpt.attention.flex import mask_of_pass
from neox_gpt.block import Block
from neox_gpt.documents import DocumentRules
from neox_gpt.embedding import Embedding
from neox_gpt.faults import fault_in, require_alike
from neox_gpt.linear import ColumnLinear
from neox_gpt.loss import cross_entropy, finished
from neox_gpt.matmul import linear
from neox_gpt.outputs import DecoderOutputs
from neox_gpt.recompute import run_layers
from neox_gpt.scope import Scope, prepare
from neox_gpt.shape import flops_per_token

if TYPE_CHECKING:
    from neox_core.contracts.objective import Run
    from neox_core.parallel.row import Recompute, Routing
    from neox_core.parallel.tensor import TensorParallel
    from neox_gpt.attention.sparse import BlockTable
    from neox_gpt.compiled_loss import CompiledLoss
    from neox_gpt.contracts import FeedForward, Mixer
    from neox_gpt.shape import ModelShape


class GPT(nn.Module):
    """A decoder-only transformer as GPT-NeoX defines it.

    norm: makes a fresh norm of width hidden_size. feed_forward: makes that of a block, from its index.
    mixer: the same of mixers; None: softmax attention. position: a module that keeps `contracts.Position`.
    narrow_loss: the loss of a token in the dtype of its logits, see `cross_entropy`. tensor: the ranks that share it.
    documents: what the end of a document in a sample means; None: a sample is one document.
    recompute: which activations are computed again in the backward pass; None: all are kept.
    tables: by layer, the blocks of keys that its queries see; all other layers see everything before them.
    compiled_loss: the loss of a few tokens; None: by torch's operators alone. sparse_gradients: of the embedding.
    joined: whether the sublayers of a block share their sums, see `joined.joins`.
    """

    def __init__(
        self,
        shape: ModelShape,
        norm: Callable[[], nn.Module],
        feed_forward: Callable[[int], FeedForward],
        position: nn.Module,
        tensor: TensorParallel = ALONE,
        *,
        mixer: Callable[[int], Mixer] | None = None,
        narrow_loss: bool = False,
        documents: DocumentRules | None = None,
        recompute: Recompute | None = None,
        tables: Mapping[int, BlockTable] | None = None,
        compiled_loss: CompiledLoss | None = None,
        sparse_gradients: bool = False,
        joined: Callable[[int], bool] = lambda _: False,
    ) -> None:
        super().__init__()
        self.tables = tables or {}
        self.kernels: Mapping[str, Callable[..., Any]] = {}
        self.narrow_loss = narrow_loss
        self.documents = documents
        self.draws = shape.has_dropout
        self.recompute = recompute
        self.compiled_loss = compiled_loss
        self.shape = shape
        self.tensor = tensor
        self.embedding = Embedding(
            shape.vocab_size,
            shape.hidden_size,
            shape.hidden_dropout,
            tensor,
            sparse_gradients=sparse_gradients,
            multiplier=shape.embedding_multiplier,
        )
        self.sparse_weights = (self.embedding.weight,) if sparse_gradients else ()
        self.position = position
        mixer = mixer or (lambda block: Attention(shape.mixer(block), tensor))
        self.layers = nn.ModuleList(
            Block(shape, norm, partial(mixer, index), partial(feed_forward, index), tensor, index, joined=joined(index))
            for index in range(shape.num_unique_layers)
        )
        self.final_norm = norm()
        untied = not shape.tie_embeddings
        make_head = partial(ColumnLinear, shape.hidden_size, shape.vocab_size, tensor, bias=shape.head_bias)
        self.head = make_head() if untied else None

    def forward(
        self, compute: Callable[[Run], Tensor], keys: Tensor | None = None, *, routing: Routing | None = None
    ) -> Tensor:
        """What `compute` makes of passes over the model: see `parallel.row.Model`.

        keys: one for each sample, which in training decide what dropout drops, see `parallel.sample_keys`; each pass
        drops others. routing: the layers that see some of the tokens. Raises ValueError where keys are missing.
        """
        if not self.training:
            keys = None
        elif keys is None and self.shape.has_dropout:
            raise ValueError("training with dropout needs the keys of the samples")
        passes = count()

        def run(tokens: Tensor) -> DecoderOutputs:
            number = next(passes)
            return self.outputs(tokens, mix(keys ^ number) if keys is not None and number else keys, routing)

        try:
            return compute(run)
        except Exception as error:
            if fault := fault_in(error, self.shape):
                raise fault from error
            raise

    def loss(
        self, tokens: Tensor, labels: Tensor, keys: Tensor | None = None, *, routing: Routing | None = None
    ) -> Tensor:
        """Mean cross-entropy in nats over the labels that count and are not -100; tokens, labels: int64 [batch, seq].

        The logits exist for a few tokens at a time, never for the whole batch. The others as of `forward`.
        """
        counts = None if self.documents is None else self.documents.counts(tokens)
        labels = labels if counts is None else labels.masked_fill(~counts, IGNORED)
        loss: Tensor = self(lambda run: run(tokens).cross_entropy(labels), keys, routing=routing)
        return loss

    def outputs(self, tokens: Tensor, keys: Tensor | None, routing: Routing | None) -> DecoderOutputs:
        """What one pass gives. tokens: int64 [batch, seq]."""
        x, total = self._states(tokens, None, keys, routing)
        compiled = None if self.compiled_loss is None else self.compiled_loss.function
        loss = self.kernels.get("cross_entropy") or partial(cross_entropy, compiled=compiled)
        hidden, auxiliary = self.tensor.enter(x), self.shape.auxiliary
        made = DecoderOutputs(hidden, self.output_weight, self.tensor, self.narrow_loss, loss, total, auxiliary)
        return evolve(made, bias=self.output_bias, cap=self.shape.logit_softcap)

    def logits(self, tokens: Tensor, cache: DecodingCache | None = None) -> Tensor:
        """int64 [batch, seq] -> [batch, seq, vocab]. With a cache, `tokens` are those that follow what it holds."""
        hidden = self.tensor.enter(self.hidden(tokens, cache))
        return self._logits(hidden)

    def _logits(self, hidden: Tensor) -> Tensor:
        product = linear(hidden, self.output_weight)
        return self.tensor.gather_last(finished(product, self.output_bias, self.shape.logit_softcap))

    def last_logits(self, tokens: Tensor, cache: DecodingCache | None = None) -> Tensor:
        """The logits after the last token of each sequence: int64 [batch, seq] -> [batch, vocab]."""
        hidden = self.tensor.enter(self.hidden(tokens, cache))[:, -1]
        return self._logits(hidden)

    def hidden(
        self,
        tokens: Tensor,
        cache: DecodingCache | None = None,
        keys: Tensor | None = None,
        routing: Routing | None = None,
    ) -> Tensor:
        """int64 [batch, seq] -> the normalised states after the last block, [batch, seq, hidden].

        With a cache a sequence is one document, whatever is in it.
        """
        return self._states(tokens, cache, keys, routing)[0]

    def _states(
        self, tokens: Tensor, cache: DecodingCache | None, keys: Tensor | None, routing: Routing | None
    ) -> tuple[Tensor, Tensor | None]:
        """`hidden`, and the sum of what the layers give besides, see `auxiliary`."""
        positions, scope = self.scope(tokens, cache, keys, routing)
        x = self.embedding(tokens, positions, self.position, keys)
        blocks = [(layer, self.layers[index]) for layer, index in enumerate(self.shape.layer_order)]
        x, total = run_layers(blocks, x, self.position, scope, self.recompute)
        if cache is not None:
            cache.advance(tokens.shape[1])
        before_last_norm, normed = x, self.final_norm(x)
        require_alike(normed, before_last_norm)
        return normed, total

    def scope(
        self,
        tokens: Tensor,
        cache: DecodingCache | None = None,
        keys: Tensor | None = None,
        routing: Routing | None = None,
    ) -> tuple[Tensor, Scope]:
        """The positions of int64 [batch, seq] `tokens`, [seq] or [batch, seq], and what all layers share."""
        first = 0 if cache is None else cache.length
        positions = torch.arange(first, first + tokens.shape[1], device=tokens.device)
        documents = within = None
        if self.documents is not None and cache is None:
            documents, within = self.documents.index(tokens), self.documents.positions(tokens)
        positions = positions if within is None else within
        routing = routing if self.training else None
        make = partial(prepare, self.position, self._matmul_dtype(self.embedding.weight), self.tensor)
        mask = mask_of_pass(documents)
        return positions, Scope(make(positions), keys, documents, within, cache, self.tables, routing, make, mask)

    @property
    def flops_per_token(self) -> int:
        """Of forward and backward, for one token of a whole sequence."""
        return flops_per_token(self.shape, self.shape.seq_length)

    @property
    def window(self) -> int:
        """The longest sequence, in tokens: what there are positions for, or layouts."""
        longest = self.shape.seq_length if self.tables else self.shape.max_positions
        return min(longest, getattr(self.position, "decodes_up_to", None) or longest)

    @property
    def output_weight(self) -> Tensor:
        """[vocab, hidden], of a tensor-parallel rank its rows: the head's, or the embedding's where they are tied."""
        return self.embedding.weight if self.head is None else self.head.weight

    @property
    def output_bias(self) -> Tensor | None:
        """[vocab], of a tensor-parallel rank its rows; None: there is none."""
        return None if self.head is None else self.head.bias

    def new_cache(self, capacity: int) -> DecodingCache:
        """Where the layers keep what they need of sequences of up to `capacity` tokens."""
        return DecodingCache(capacity)

    @staticmethod
    def _matmul_dtype(x: Tensor) -> torch.dtype:
        device = x.device.type
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
