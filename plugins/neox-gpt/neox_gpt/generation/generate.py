"""Generates text with a trained model: for `neox generate`, and for the sample at the end of a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from neox_core.checkpoint.read import read_weights
from neox_core.data.batches import build_tokenizer
from neox_core.data.tokenizer import padded_vocab
from neox_core.errors import UsageError, run_main
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import receive_plan
from neox_core.terminal import echo
from neox_gpt.build import build_model
from neox_gpt.config.plan import gpt_plan_in
from neox_gpt.generation.sampling import Sampling, draw

if TYPE_CHECKING:
    from neox_core.contracts import Tokenizer
    from neox_core.plan.runfile import PrecisionPlan, RunPlan
    from neox_gpt.gpt import GPT

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


def sample(
    model: GPT, tokenizer: Tokenizer, prompt: str, *, max_new_tokens: int = 160, sampling: Sampling | None = None
) -> str:
    """`prompt` and its continuation, to the end of the document or `max_new_tokens`.

    Restores the mode of the model, and draws from a generator of its own.
    """
    return prompt + "".join(stream(model, tokenizer, prompt, max_new_tokens=max_new_tokens, sampling=sampling))


def stream(
    model: GPT, tokenizer: Tokenizer, prompt: str, *, max_new_tokens: int, sampling: Sampling | None = None
) -> Iterator[str]:
    """The continuation of `prompt` in pieces of text, each as soon as it is complete.

    A character whose bytes span two tokens comes with the second one.
    """
    ids = _ids(tokenizer, prompt)
    new = continue_ids(model, ids, tokenizer, max_new_tokens=max_new_tokens, sampling=sampling or Sampling())
    return _as_text(new, tokenizer)


@torch.no_grad()
def continue_ids(
    model: GPT, ids: Sequence[int], tokenizer: Tokenizer, *, max_new_tokens: int, sampling: Sampling
) -> Iterator[int]:
    """Ids after `ids`, at most `max_new_tokens` of them and without the end of document that stops them.

    A model sees at most its window. Where the text grows longer, generation continues from the newer half of the
    window.
    """
    was_training = model.training
    model.eval()
    try:
        window = model.window
        seen, pending = list(ids), list(ids[-window:])
        cache = model.new_cache(capacity=min(window, len(pending) + max_new_tokens))
        device = model.embedding.weight.device
        generator = torch.Generator().manual_seed(sampling.seed)
        for _ in range(max_new_tokens):
            if cache.length + len(pending) > window:
                cache.clear()
                pending = seen[-max(1, window // 2) :]
            logits = model.last_logits(torch.tensor([pending], device=device), cache)[0, : tokenizer.vocab_size]
            token = draw(logits, sampling, generator)
            if token == tokenizer.eod:
                return
            yield token
            seen.append(token)
            pending = [token]
    finally:
        model.train(was_training)


def _ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    return tokenizer.encode(prompt) or [tokenizer.eod]  # nothing to continue: start a document


def _as_text(ids: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    given, told = [], 0
    text = ""
    for token in ids:
        given.append(token)
        text = tokenizer.decode(given)
        if not text.endswith(UNFINISHED):
            yield text[told:]
            told = len(text)
    if text[told:]:
        yield text[told:]


def load_model(checkpoint: Path, plan: RunPlan, device: torch.device) -> tuple[GPT, Tokenizer]:
    """The model in a checkpoint that a run of `plan` wrote, and its tokenizer.

    On a CPU its weights are fp32, which holds those of any training type exactly. Raises CheckpointError when the
    checkpoint is damaged or of another model, UsageError when its run had no tokenizer.
    """
    tokenizer = build_tokenizer(plan)
    if tokenizer is None:
        raise UsageError(f"{checkpoint}: its run had no tokenizer, so there is none to read a prompt with")
    context = BuildContext(device, _dtype(plan.precision, device), Groups(None, None, 0, 1), plan.train.seed)
    vocab_size = padded_vocab(plan.model, tokenizer.vocab_size)
    weights = read_weights(checkpoint)
    return build_model(gpt_plan_in(plan), vocab_size, context, weights, eod=tokenizer.eod), tokenizer


def _dtype(precision: PrecisionPlan, device: torch.device) -> torch.dtype:
    if device.type == "cpu":
        return torch.float32
    half = precision.dtype if precision.autocast is None else precision.autocast
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[half]


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("there is no GPU here that torch can use", hint="leave out --device, or use --device cpu")
    return torch.device(name)


def generate(
    checkpoint: Path, plan: RunPlan, prompt: str, max_new_tokens: int, device: str, sampling: Sampling
) -> None:
    """Write `prompt` and its continuation to the terminal, piece by piece."""
    model, tokenizer = load_model(checkpoint, plan, _device(device))
    given = len(_ids(tokenizer, prompt))
    if given > model.window:
        echo(f"note: of the {given:,} tokens of the prompt the model sees the last {model.window:,}", err=True)
    if given + max_new_tokens > model.window:
        echo(f"note: each time {model.window:,} tokens are full, the text continues from their newer half", err=True)
    echo(prompt, end="")
    for piece in stream(model, tokenizer, prompt, max_new_tokens=max_new_tokens, sampling=sampling):
        echo(piece, end="")
    echo("")


def main() -> None:
    """`python -m neox_gpt.generation.generate JSON`: the arguments of `generate`, `sampling` as an object."""
    raw: dict[str, Any] = json.loads(sys.argv[1])
    checkpoint, plan = Path(raw.pop("checkpoint")), receive_plan(raw.pop("plan"))
    generate(checkpoint, plan, **{**raw, "sampling": Sampling(**raw["sampling"])})


if __name__ == "__main__":
    run_main(main)
