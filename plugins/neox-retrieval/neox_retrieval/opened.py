"""A trained retriever and the blocks of its documents, as the commands use them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from neox_bert.api import special_tokens
from neox_gpt.api import load_run

from neox_core.data.sources import Datasets
from neox_core.errors import ConfigError, UsageError
from neox_retrieval.blocks import Blocks, all_blocks, filled_up
from neox_retrieval.planner import RetrieverPlan
from neox_retrieval.vectors import Facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from neox_gpt.api import LoadedRun
    from numpy.typing import NDArray

    from neox_core.plan.runfile import RunPlan


@frozen
class Opened:
    """run: the model in fp32, in evaluation. blocks: of all documents. facts: what vectors of both have to say."""

    run: LoadedRun
    blocks: Blocks
    facts: Facts
    device: torch.device

    def embed_blocks(self, numbers: Sequence[int]) -> NDArray[np.float32]:
        """The vectors of some blocks, fp32 [numbers, size]."""
        return self.embed_tokens([self.blocks.tokens(each) for each in numbers])

    @torch.no_grad()
    def embed_tokens(self, blocks: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        """The vectors of the tokens of some blocks."""
        rows = torch.stack([torch.from_numpy(each) for each in blocks])
        return self._plain(self.run.model.embed_blocks(rows.to(self.device)))

    @torch.no_grad()
    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vectors of some texts, fp32 [texts, size], each cut to the length of a query."""
        tokenizer, model = self.run.tokenizer, self.run.model
        if tokenizer is None:
            raise UsageError("the run has no tokenizer to turn a text into tokens", hint="set tokenizer-type")
        cls, sep, *_ = self.blocks.special
        length = model.query_length
        rows = [filled_up([cls, *tokenizer.encode(each)[: length - 2], sep], self.blocks, length) for each in texts]
        found = [
            self._plain(
                model.embed_queries(torch.stack([torch.from_numpy(one) for one in rows[at : at + 64]]).to(self.device))
            )
            for at in range(0, len(rows), 64)
        ]
        vectors: NDArray[np.float32] = torch.cat([torch.from_numpy(each) for each in found]).numpy()
        return vectors

    def words(self, ids: list[int]) -> str:
        """Ids as text; without a tokenizer as numbers."""
        tokenizer = self.run.tokenizer
        return " ".join(map(str, ids)) if tokenizer is None else tokenizer.decode(ids)

    @staticmethod
    def _plain(vectors: torch.Tensor) -> NDArray[np.float32]:
        found: NDArray[np.float32] = vectors.float().cpu().numpy()
        return found


def open_run(plan: RunPlan, checkpoint: Path, device: torch.device) -> Opened:
    """Load a retriever and open its documents. Raises CheckpointError, DataError, ConfigError for another model."""
    if not isinstance(plan.model, RetrieverPlan):
        raise ConfigError(
            f"{plan.architecture.owner}: is not a retriever", hint="name a run of architecture: retriever"
        )
    run = load_run(plan, checkpoint, str(device))
    blocks = all_blocks(plan, Datasets(plan.data), special_tokens(plan.model), run.vocab_size)
    facts = Facts(len(blocks), plan.model.head_size, identity_of(run.model), blocks.identity())
    return Opened(run, blocks, facts, device)


def identity_of(model: Any) -> str:
    """A text that changes when any weight does."""
    digest = hashlib.sha256()
    for name, each in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(each.shape)}".encode())
        digest.update(each.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
