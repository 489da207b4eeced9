"""Loads the tokenizer of a run, checks its contract, and says how many rows a table of its tokens has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from neox_core.errors import ConfigError

if TYPE_CHECKING:
    from neox_core.contracts import Tokenizer
    from neox_core.plan.runfile import ComponentRef, ModelPlan


def load_tokenizer(reference: ComponentRef) -> Tokenizer:
    """Load a tokenizer. Raises DataError for unreadable files, PluginError for a breach of `contracts.Tokenizer`."""
    tokenizer: Tokenizer = reference.make()
    size = getattr(tokenizer, "vocab_size", None)
    if not isinstance(size, int) or size < 1:
        raise reference.fault(f"its vocab_size is {size!r}, not a number of ids")
    if not hasattr(tokenizer, "eod"):
        raise reference.fault("it has no eod, the id that ends a document")
    if not isinstance(tokenizer.eod, int) or not 0 <= tokenizer.eod < size:
        raise reference.fault(f"its eod is {tokenizer.eod!r}, not an id below its vocab_size {size}")
    lacks = [name for name in ("encode", "encode_batch", "decode") if not callable(getattr(tokenizer, name, None))]
    if lacks:
        raise reference.fault(f"it has no method {lacks[0]}")
    return tokenizer


def encode_batch(reference: ComponentRef, tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text. Raises PluginError for a fault of the tokenizer, such as an id with a fraction."""
    with reference.blamed():
        encoded = tokenizer.encode_batch(texts)
        first = next((ids[0] for ids in encoded if len(ids)), 0)
    if len(encoded) != len(texts) or not isinstance(first, int | np.integer):
        raise reference.fault("encode_batch() does not give a list of whole numbers for each text")
    return encoded


def padded_vocab(plan: ModelPlan, tokenizer_vocab_size: int | None) -> int:
    """Rows of the embedding: `padded-vocab-size`, or the tokenizer's vocabulary rounded up to a multiple of
    `make-vocab-size-divisible-by` (50257 with 128 gives 50304).

    Raises ConfigError when neither is known, or when the tokenizer has more ids than rows were asked for.
    """
    if plan.padded_vocab_size is not None:
        if tokenizer_vocab_size is not None and tokenizer_vocab_size > plan.padded_vocab_size:
            raise ConfigError(
                f"padded-vocab-size {plan.padded_vocab_size} is smaller than the tokenizer's {tokenizer_vocab_size} ids"
            )
        return plan.padded_vocab_size
    if tokenizer_vocab_size is None:
        raise ConfigError("the size of the vocabulary is not known", hint="set tokenizer-type or padded-vocab-size")
    multiple = plan.make_vocab_size_divisible_by
    return -(-tokenizer_vocab_size // multiple) * multiple
