"""Several documents in one sample, separated by the tokens that end a document."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor


@frozen
class DocumentRules:
    """What the end of a document in a sample means. eod: the token that ends one, and belongs to it.

    reset_positions: positions count from the document's first token. reset_attention: a token sees its own document
    alone. mask_loss: what is predicted from `eod`, the first token of another document, is left out of the loss.
    """

    eod: int
    reset_positions: bool = False
    reset_attention: bool = False
    mask_loss: bool = False

    def index(self, tokens: Tensor) -> Tensor | None:
        """int64 [batch, seq] -> which of its sample's documents each token is in, where attention asks for it."""
        if not self.reset_attention:
            return None
        ends = (tokens == self.eod).long()
        return ends.cumsum(1) - ends

    def positions(self, tokens: Tensor) -> Tensor | None:
        """int64 [batch, seq] -> the place of each token in its document, where positions ask for it."""
        if not self.reset_positions:
            return None
        index = torch.arange(tokens.shape[1], device=tokens.device)
        begins = torch.zeros_like(tokens, dtype=torch.bool)
        begins[:, 1:] = tokens[:, :-1] == self.eod
        first = torch.where(begins, index, 0).cummax(1).values
        return index - first

    def counts(self, tokens: Tensor) -> Tensor | None:
        """int64 [batch, seq] -> whether the label of each token counts, bool [batch, seq]; None: all do."""
        return tokens != self.eod if self.mask_loss else None
