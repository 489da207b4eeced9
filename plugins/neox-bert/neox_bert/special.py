"""The ids of the special tokens of an encoder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attrs import frozen

from neox_bert.section import SPECIAL
from neox_core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from neox_bert.planner import BertPlan
    from neox_core.contracts import Tokenizer


@frozen
class Special:
    """Begins a sample, ends each piece of text, hides a token, fills a sample up."""

    cls: int
    sep: int
    mask: int
    pad: int

    def __iter__(self) -> Iterator[int]:
        return iter((self.cls, self.sep, self.mask, self.pad))


def special_tokens(plan: BertPlan) -> Special:
    """Those of a plan. Raises DataError for a tokenizer that lacks one, ConfigError for ids that the model lacks."""
    ids = list(plan.special)
    if None in ids:
        if plan.tokenizer is None:
            hint = "set mask-token-id and the others"
            raise ConfigError("without a tokenizer the special tokens are not known", hint=hint)
        tokenizer: Tokenizer = plan.tokenizer.make()
        for place, name in enumerate(SPECIAL):
            if ids[place] is None:
                found = tokenizer.encode(f"[{name.upper()}]")
                if len(found) != 1:
                    hint = f"use a vocabulary of BERT, or set {name}-token-id"
                    raise DataError(f"{plan.tokenizer.owner}: has no token [{name.upper()}]", hint=hint)
                ids[place] = found[0]
    rows = plan.padded_vocab_size
    for name, each in zip(SPECIAL, ids, strict=True):
        if rows is not None and each is not None and each >= rows:
            raise ConfigError(f"{name}-token-id {each} is not among the model's {rows} ids")
    return Special(*(int(each) for each in ids if each is not None))
