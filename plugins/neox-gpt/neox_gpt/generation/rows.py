"""Continues texts, several at a time: one pass over the model gives the next token of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from attrs import define, field

from neox_gpt.generation.sampling import Sampling, draw

if TYPE_CHECKING:
    from neox_core.contracts import Tokenizer
    from neox_gpt.gpt import GPT


@define(eq=False)
class Row:
    """A text that is being continued.

    ids: of the prompt, at least one, and of what follows it. seed: of what is drawn. done: whether it has ended; who
    reads the ids may end it.
    """

    ids: list[int]
    seed: int = 0
    done: bool = False
    new: int = field(init=False, default=0)
    seen: set[int] = field(init=False)
    generator: torch.Generator = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.seen = set(self.ids)
        self.generator = torch.Generator().manual_seed(self.seed)

    def add(self, token: int) -> None:
        """Continue the text by a token."""
        self.ids.append(token)
        self.seen.add(token)
        self.new += 1


@torch.no_grad()
def continue_rows(
    model: GPT, rows: Sequence[Row], tokenizer: Tokenizer, *, max_new_tokens: int, sampling: Sampling
) -> Iterator[tuple[Row, int]]:
    """Each new id with its row, which has it in `ids`; at most `max_new_tokens` a row, without the end of document.

    No row is padded: a pass reads as many tokens of each row as the shortest prompt has, then one at a time, which
    of a longer prompt is its own next one. So every layer that decodes serves several rows as it serves one.
    A model sees at most its window. Where the text grows longer, generation continues from the newer half of it. The
    mode of the model is restored.
    """
    was_training = model.training
    model.eval()
    try:
        window, device = model.window, model.embedding.weight.device
        firsts = [max(0, len(row.ids) - window) for row in rows]  # what the model sees of a row starts there
        lengths = [len(row.ids) - first for row, first in zip(rows, firsts, strict=True)]
        cache = model.new_cache(capacity=min(window, max(lengths) + max_new_tokens))
        read, width = 0, min(lengths)  # tokens of each row that the model has read, and reads next
        while not all(row.done for row in rows):
            if read + width > window:  # every prompt has been read, so all rows are equally long
                cache.clear()
                width = max(1, window // 2)
                firsts = [len(row.ids) - width for row in rows]
                read = 0
            some = [row.ids[first + read : first + read + width] for row, first in zip(rows, firsts, strict=True)]
            logits = model.last_logits(torch.tensor(some, device=device), cache)[:, : tokenizer.vocab_size]
            read, width = read + width, 1
            for row, first, scores in zip(rows, firsts, logits, strict=True):
                if first + read < len(row.ids):
                    continue  # of its prompt there is more
                if row.done:
                    row.ids.append(row.ids[-1])  # any id: nothing reads it
                    continue
                token = draw(scores, sampling, row.generator, row.seen)
                if token == tokenizer.eod:
                    row.done = True
                    row.ids.append(token)
                    continue
                row.add(token)
                row.done = row.new >= max_new_tokens
                yield row, token
    finally:
        model.train(was_training)


def continue_ids(
    model: GPT, ids: Sequence[int], tokenizer: Tokenizer, *, max_new_tokens: int, sampling: Sampling
) -> Iterator[int]:
    """Ids after `ids`, as `continue_rows` gives them of one row."""
    rows = [Row(list(ids), sampling.seed)]
    for _, token in continue_rows(model, rows, tokenizer, max_new_tokens=max_new_tokens, sampling=sampling):
        yield token
