"""The retriever: two encoders, and heads that make a vector of the first token's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from attrs import field, frozen
from neox_bert.api import EncoderTrunk
from neox_gpt.api import linear
from torch import Tensor, nn

from neox_core.parallel.sample_keys import mix

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from neox_core.parallel.groups import Groups
    from neox_core.parallel.row import Routing

_BLOCK = 0x5BD1E995
"""Of a sample, the block drops other numbers than the query."""


class Head(nn.Module):
    """[batch, seq, hidden] -> the vector of each sample, [batch, size]: a linear layer on the first token's state."""

    no_weight_decay = frozenset({"bias"})

    def __init__(self, hidden: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, hidden))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return linear(x[:, 0], self.weight, self.bias)


@frozen(eq=False)
class RetrieverOutputs:
    """What a pass gives. queries, blocks: the vectors of this rank's samples, [batch, size].

    group, rank, size: of the ranks whose blocks a query is compared with; None: this rank's.
    """

    queries: Tensor
    blocks: Tensor
    group: ProcessGroup | None = None
    rank: int = 0
    size: int = 1
    auxiliary_losses: Mapping[str, Tensor] = field(factory=dict)
    metrics: Mapping[str, Tensor] = field(factory=dict)

    def similarities(self) -> tuple[Tensor, Tensor]:
        """The inner product of each query with the blocks of all ranks, [batch, ranks x batch], and its own block's
        place, int64 [batch]. With gradients for the blocks of other ranks. In fp32 or wider. Collective.
        """
        wide = torch.promote_types(self.blocks.dtype, torch.float32)
        queries, blocks = self.queries.to(wide), self.blocks.to(wide)
        if self.size > 1:
            blocks = _Gathered.apply(blocks, self.group, self.rank, self.size)
        with torch.autocast(queries.device.type, enabled=False):
            products = queries @ blocks.T
        batch = len(queries)
        return products, torch.arange(batch, device=queries.device) + self.rank * batch


class _Gathered(torch.autograd.Function):
    """The rows of all ranks, in their order; the gradient of a row is the sum of what all ranks have for it.

    torch.distributed.nn's function has an exchange of single messages for gloo, and knows registered groups alone.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Any, rank: int, size: int) -> Tensor:
        ctx.group, ctx.rank, ctx.number = group, rank, len(rows)
        parts = [torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(size)]
        dist.all_gather(parts, rows.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total[ctx.rank * ctx.number :][: ctx.number], None, None, None


class Retriever(nn.Module):
    """The first `query_length` tokens of a sample are a query, the others a block: see `samples.ClozeSamples`.

    Arguments before the star, and `more`, as of `EncoderTrunk`. shared: one encoder for both.
    """

    layers: tuple[()] = ()
    documents = None

    def __init__(self, *parts: Any, head_size: int, query_length: int, shared: bool, **more: Any) -> None:
        super().__init__()
        shape, norm, feed_forward, own_position, tensor = parts
        self.query_length = query_length
        self.query = EncoderTrunk(shape, norm, feed_forward, own_position, tensor, **more)
        self.block = None if shared else EncoderTrunk(shape, norm, feed_forward, deepcopy(own_position), tensor, **more)
        self.query_head, self.block_head = (Head(shape.hidden_size, head_size) for _ in range(2))
        self.draws = shape.has_dropout
        self.sparse_weights = tuple(each for tower in self._towers() for each in tower.sparse_weights)
        self._across: tuple[ProcessGroup | None, int, int] = (None, 0, 1)

    def join(self, groups: Groups) -> None:
        """From now on a query is compared with the blocks of all data-parallel ranks."""
        self._across = groups.data, groups.data_rank, groups.data_size

    def forward(
        self, compute: Callable[[Any], Tensor], keys: Tensor | None = None, *, routing: Routing | None = None
    ) -> Tensor:
        """What `compute` makes of passes over the model: see `parallel.row.Model`."""
        if not self.training:
            keys = None
        elif keys is None and self.draws:
            raise ValueError("training with dropout needs the keys of the samples")
        passes = count()

        def run(tokens: Tensor) -> RetrieverOutputs:
            number = next(passes)
            return self.outputs(tokens, mix(keys ^ number) if keys is not None and number else keys)

        return compute(run)

    def outputs(self, tokens: Tensor, keys: Tensor | None) -> RetrieverOutputs:
        """int64 [batch, seq] -> the vectors of one pass."""
        queries = self.embed_queries(tokens[:, : self.query_length], keys)
        others = None if keys is None else mix(keys ^ _BLOCK)
        return RetrieverOutputs(queries, self.embed_blocks(tokens[:, self.query_length :], others), *self._across)

    def embed_queries(self, tokens: Tensor, keys: Tensor | None = None) -> Tensor:
        """int64 [batch, up to query_length] -> [batch, size]. keys: of the samples, for dropout."""
        vectors: Tensor = self.query_head(self.query.hidden(tokens, keys=keys))
        return vectors

    def embed_blocks(self, tokens: Tensor, keys: Tensor | None = None) -> Tensor:
        """int64 [batch, up to the length of a block] -> [batch, size]."""
        tower = self.query if self.block is None else self.block
        vectors: Tensor = self.block_head(tower.hidden(tokens, keys=keys))
        return vectors

    @property
    def flops_per_token(self) -> int:
        """Of forward and backward, for one token of a sample, which goes through one encoder."""
        shape = self.query.shape
        of_heads = 12 * shape.hidden_size * len(self.query_head.bias) // shape.seq_length
        return self.query.flops_per_token - 6 * shape.hidden_size * shape.vocab_size + of_heads

    def _towers(self) -> list[EncoderTrunk]:
        return [self.query] if self.block is None else [self.query, self.block]
