"""Generates text with a trained model: for commands, from Python, and for the sample at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from attrs import frozen

from neox_gpt.generation.rows import Row, continue_rows
from neox_gpt.generation.sampling import Sampling
from neox_gpt.generation.text import Text

if TYPE_CHECKING:
    from neox_core.contracts import Tokenizer
    from neox_gpt.gpt import GPT


@frozen
class Continuation:
    """What follows a prompt. text: without the prompt and the stop string. num_prompt_tokens, num_tokens: of the
    prompt, and generated. end: of the document, at a stop string, or at the length that was asked for.
    """

    text: str
    num_prompt_tokens: int
    num_tokens: int
    end: Literal["document", "stop", "length"]


def sample(
    model: GPT, tokenizer: Tokenizer, prompt: str, *, max_new_tokens: int = 160, sampling: Sampling | None = None
) -> str:
    """`prompt` and its continuation, to the end of the document or `max_new_tokens`.

    Restores the mode of the model, and draws from a generator of its own.
    """
    return prompt + "".join(stream(model, tokenizer, prompt, max_new_tokens=max_new_tokens, sampling=sampling))


def stream(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    stops: Sequence[str] = (),
) -> Iterator[str]:
    """The continuation of `prompt` in pieces of text, each as soon as it is certain, see `Text.add`."""
    text = Text(tokenizer, stops)
    sampling = sampling or Sampling()
    rows = [Row(prompt_ids(tokenizer, prompt), sampling.seed)]
    for row, token in continue_rows(model, rows, tokenizer, max_new_tokens=max_new_tokens, sampling=sampling):
        yield text.add(token)
        row.done = row.done or text.stopped
    yield text.end()


def continuations(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    stops: Sequence[str] = (),
    first: int = 0,
) -> list[Continuation]:
    """The continuation of each prompt, a text or its ids, all in one batch, as each would be continued alone.

    max_new_tokens: of each. stops: a text ends before the first of them. The mode of the model is restored.
    first: the number of the first prompt. Prompt k draws with the seed of `sampling` plus k, whatever is beside it.
    """
    sampling = sampling or Sampling()
    ids = [prompt_ids(tokenizer, each) if isinstance(each, str) else each for each in prompts]
    rows = [Row(list(each), sampling.seed + first + number) for number, each in enumerate(ids)]
    texts = {row: Text(tokenizer, stops) for row in rows}
    for row, token in continue_rows(model, rows, tokenizer, max_new_tokens=max_new_tokens, sampling=sampling):
        texts[row].add(token)
        row.done = row.done or texts[row].stopped
    found = []
    for (row, text), prompt in zip(texts.items(), ids, strict=True):
        text.end()
        end = _end(text, row.new >= max_new_tokens)
        found.append(Continuation(text.text, len(prompt), row.new, end))
    return found


def _end(text: Text, full: bool) -> Literal["document", "stop", "length"]:
    if text.stopped:
        return "stop"
    return "length" if full else "document"


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The ids of a prompt; of an empty one the end of a document, after which another starts."""
    return tokenizer.encode(prompt) or [tokenizer.eod]
