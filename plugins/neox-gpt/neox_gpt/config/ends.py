"""Whether the datasets of a run hold the token that ends a document, where keys of the model look for it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from neox_core.errors import NeoxError
from neox_gpt.config.plan import GPTPlan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neox_core.api import Problem
    from neox_core.config.schema.structure import Config
    from neox_core.contracts import TokenSource
    from neox_core.plan.runfile import RunPlan

KEYS = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")
LOOKED_AT, MOST_DOCUMENTS = 1 << 20, 10_000
"""Tokens from the start of a dataset, and documents whose last token is looked at."""


def without_ends(config: Config, plan: RunPlan) -> Iterator[Problem]:
    """A warning for each key that finds no such token. What cannot be read, or only in order, is left to the ranks."""
    keys = [key for key in KEYS if isinstance(plan.model, GPTPlan) and getattr(plan.model, key)]
    tokenizer, prefixes = plan.data.tokenizer, [each.prefix for each in plan.data.train] or [plan.data.prefix or ""]
    if not keys or tokenizer is None:
        return
    lacking: list[str] = []
    with suppress(NeoxError, OSError, ImportError):
        from neox_core.data.sources import Datasets
        from neox_core.data.tokenizer import load_tokenizer

        datasets, eod = Datasets(plan.data), load_tokenizer(tokenizer).eod
        if not datasets.streamed:
            lacking = [prefix for prefix in prefixes if prefix and not _holds(datasets.source(prefix), eod)]
    for key in keys if lacking else ():
        said = (
            f"does nothing with {', '.join(lacking)}: no document there ends with the token {eod} of {tokenizer.name}"
        )
        hint = "prepare the text with `neox data prepare`, or with --append-eod of GPT-NeoX, or leave the key out"
        yield config.problem(said, key, hint, "warning")


def _holds(source: TokenSource, token: int) -> bool:
    """Whether a token ends one of the first documents, or is among the first tokens."""
    left = LOOKED_AT
    for document, size in enumerate(source.sizes[:MOST_DOCUMENTS].tolist()):
        head, end = min(size, left), max(0, size - 1)
        if any((source.read(document, *part) == token).any() for part in ((0, head), (end, size - end)) if part[1]):
            return True
        left -= head
    return not len(source.sizes)
