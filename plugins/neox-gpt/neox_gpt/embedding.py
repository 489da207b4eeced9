"""Token ids to the first hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neox_core.parallel.tensor import ALONE, Cut
from neox_gpt.dropout import EMBEDDING, drop
from neox_gpt.faults import require_alike

if TYPE_CHECKING:
    from neox_core.parallel.tensor import TensorParallel
    from neox_gpt.contracts import Position


class Embedding(nn.Module):
    """Rows of a table, and what the position adds to them. Where embeddings are tied, the table is the head's too.

    A tensor-parallel rank holds some rows; with sequence parallelism it returns its positions only.
    multiplier: of the rows, rounded to the precision of the table, as Gemma does it.
    sparse_gradients: the table's gradient is a sparse tensor, of the rows that were used; not of a part of a table.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        dropout: float,
        tensor: TensorParallel = ALONE,
        *,
        sparse_gradients: bool = False,
        multiplier: float | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(tensor.share(vocab_size), hidden_size))
        self.sparse_gradients = sparse_gradients
        self.dropout = dropout
        self.multiplier = multiplier
        self.tensor = tensor
        self.cuts: dict[str, Cut] = {} if tensor.size == 1 else {"weight": tensor.cut(0, (vocab_size,))}

    def forward(self, tokens: Tensor, positions: Tensor, position: Position, keys: Tensor | None = None) -> Tensor:
        """int64 [batch, seq] -> [batch, seq, hidden]. keys: of the samples, for dropout; None: none."""
        mine = self.tensor.positions(tokens.shape[1])
        rows = self._rows(tokens)
        if self.multiplier is not None:
            rows = rows * torch.tensor(self.multiplier, dtype=rows.dtype, device="cpu").item()
        hidden = position.embed(rows, positions[..., mine])  # [batch, seq, hidden]
        require_alike(hidden, rows)
        if torch.is_grad_enabled() and not hidden.requires_grad:
            hidden.requires_grad_()  # of a frozen table; recomputation and pipelines give a gradient to what needs one
        return drop(hidden, self.dropout, keys, EMBEDDING, mine.start)

    def _rows(self, tokens: Tensor) -> Tensor:
        if self.tensor.size == 1:
            return F.embedding(tokens, self.weight, sparse=self.sparse_gradients)
        index = tokens - self.tensor.rank * self.weight.shape[0]
        elsewhere = (index < 0) | (index >= self.weight.shape[0])
        rows = F.embedding(index.masked_fill(elsewhere, 0), self.weight)
        return self.tensor.leave(rows.masked_fill(elsewhere[..., None], 0.0))
