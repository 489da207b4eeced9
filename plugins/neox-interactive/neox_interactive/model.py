"""A model and its tokenizer as a module of torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from attrs import fields
from neox_gpt.api import Sampling, continuations, load_run
from torch import Tensor, nn

from neox_core.errors import UsageError

if TYPE_CHECKING:
    from neox_gpt.api import LoadedRun

    from neox_core.contracts import Tokenizer
    from neox_core.plan.runfile import RunPlan


class Model(nn.Module):
    """What `neox_core.load` returns; its call gives logits.

    model: the module itself, with the weights. tokenizer: with `encode`, `decode`, `vocab_size` and `eod`; None where
    the run had none. plan: of the run that wrote it. checkpoint: its folder.
    """

    def __init__(self, run: LoadedRun) -> None:
        super().__init__()
        self.model: Any = run.model
        self.tokenizer: Tokenizer | None = run.tokenizer
        self.plan: RunPlan = run.plan
        self.checkpoint: Path = run.checkpoint
        self._vocab_size = run.vocab_size
        self.eval()

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.model.parameters()).device

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [batch, seq] -> logits [batch, seq, vocab], with gradients where torch records them."""
        logits: Tensor = self.model(lambda run: run(tokens.to(self.device)).logits())
        return logits

    @torch.no_grad()
    def logits(self, text: str | Tensor) -> Tensor:
        """The logits after each token of a text, [tokens, vocab], or of int64 [batch, seq] ids, [batch, seq, vocab].

        Without gradients. Of an empty text those after the end of a document. The vocabulary may have more rows than
        the tokenizer has ids. Raises UsageError for anything else, and for ids that the model does not have.
        """
        if isinstance(text, Tensor):
            rows = self._vocab_size
            if text.dim() != 2 or text.dtype != torch.int64 or not text.numel():
                raise UsageError(f"logits are of int64 [batch, seq] ids, not {text.dtype} {list(text.shape)}")
            if not 0 <= int(text.min()) <= int(text.max()) < rows:
                raise UsageError(f"an id is not from 0 to below {rows}, the vocabulary of the model")
            return self(text)
        if not isinstance(text, str):
            raise UsageError(f"logits are of a text, or of ids in a tensor, not of {text!r:.80}")
        tokenizer = self._tokenizer()
        whole: Tensor = self(torch.tensor([tokenizer.encode(text) or [tokenizer.eod]]))
        return whole[0]

    @overload
    def generate(self, prompts: str, **options: Any) -> str: ...
    @overload
    def generate(self, prompts: Sequence[str], **options: Any) -> list[str]: ...

    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        max_new_tokens: int = 256,
        stops: Sequence[str] = (),
        **sampling: Any,
    ) -> str | list[str]:
        """What follows a prompt, or each of several, which are continued in one batch.

        max_new_tokens: of each. stops: a text ends before the first of these strings. sampling: as the options of
        `neox generate`: temperature, top_k, top_p, min_p, repetition_penalty, seed. Prompt k draws with seed + k.
        Raises UsageError for an option that is not one of these or out of its range, and for a model that cannot
        generate text.
        """
        tokenizer = self._tokenizer()
        if not hasattr(self.model, "new_cache"):
            raise UsageError(f"{self.plan.architecture.name}: its model cannot generate text")
        given = [prompts] if isinstance(prompts, str) else list(prompts) if isinstance(prompts, Sequence) else [prompts]
        if not all(isinstance(each, str) for each in given):
            raise UsageError("generate continues a text, or texts in a list")
        if isinstance(stops, str) or not all(isinstance(each, str) and each for each in stops):
            raise UsageError("stops are texts in a list, none of them empty")
        if type(max_new_tokens) is not int or max_new_tokens < 1:
            raise UsageError(f"max_new_tokens is a whole number from 1, not {max_new_tokens!r}")
        unknown = sorted(sampling.keys() - {each.name for each in fields(Sampling)})
        if unknown:
            options = ", ".join(each.name for each in fields(Sampling))
            raise UsageError(f"generate has no option {unknown[0]!r}", hint=f"of sampling it has {options}")
        try:
            chosen = Sampling(**sampling)
        except (TypeError, ValueError) as error:
            raise UsageError(f"generate: {error}") from error
        found = continuations(
            self.model, tokenizer, given, max_new_tokens=max_new_tokens, sampling=chosen, stops=stops
        ) if given else []  # fmt: skip
        return found[0].text if isinstance(prompts, str) else [each.text for each in found]

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UsageError(f"{self.checkpoint}: its run had no tokenizer", hint="give ids in a tensor to `logits`")
        return self.tokenizer


def load_model(plan: RunPlan, checkpoint: Path, device: str) -> Model:
    """The model in a checkpoint of a planned run."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device {device!r}: {str(error).splitlines()[0]}", hint='use "cpu"') from error
    return Model(load_run(plan, checkpoint, device))
