"""The encoder behind `contracts.Architecture`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from neox_gpt.api import GPTArchitecture

from neox_bert.special import special_tokens

if TYPE_CHECKING:
    from neox_bert.planner import BertPlan
    from neox_core.contracts import Tokenizer


class BertArchitecture(GPTArchitecture):
    """A planned encoder."""

    causal = False

    @torch.no_grad()
    def sample(self, model: Any, tokenizer: Tokenizer, prompt: str) -> str:
        """The text, and behind it what the model puts in the places of [MASK]."""
        special, training = special_tokens(cast("BertPlan", self.plan)), model.training
        ids = [special.cls, *tokenizer.encode(prompt)[: self.plan.seq_length - 2], special.sep]
        model.eval()
        tokens = torch.tensor([ids], device=next(model.parameters()).device)
        best = model.logits(tokens)[0, :, : tokenizer.vocab_size].argmax(-1).tolist()
        model.train(training)
        words = [tokenizer.decode([found]) for given, found in zip(ids, best, strict=True) if given == special.mask]
        return prompt + "".join(f" [{word.strip()}]" for word in words)
