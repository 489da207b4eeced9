"""Loads the tokenizer of a run and checks its contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from neox_core.contracts import Tokenizer
    from neox_core.plan.runfile import ComponentRef


def load_tokenizer(reference: ComponentRef) -> Tokenizer:
    """Load a tokenizer. Raises DataError for unreadable files, PluginError for one that breaks
    `contracts.Tokenizer`.
    """
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
