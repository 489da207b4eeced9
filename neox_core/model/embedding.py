"""Token ids to the first hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from neox_core.contracts.model import Position


class Embedding(nn.Module):
    """Rows of a table, and what the position adds to them. Where embeddings are tied, the table is the head's too."""

    def __init__(self, vocab_size: int, hidden_size: int, dropout: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))
        self.dropout = dropout

    def forward(self, tokens: Tensor, positions: Tensor, position: Position) -> Tensor:
        hidden = position.embed(F.embedding(tokens, self.weight), positions)  # [batch, seq, hidden]
        return F.dropout(hidden, self.dropout, self.training)
