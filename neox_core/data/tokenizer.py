"""Loads the tokenizer of a run, checks its contract, and says how many rows a table of its tokens has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from neox_core.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from neox_core.contracts import Tokenizer
    from neox_core.plan.runfile import ComponentRef, ModelPlan


def load_tokenizer(reference: ComponentRef) -> Tokenizer:
    """Load a tokenizer. Raises DataError for unreadable files, PluginError for a breach of `contracts.Tokenizer`."""
    tokenizer: Tokenizer = reference.make()
    size = getattr(tokenizer, "vocab_size", None)
    if not isinstance(size, int) or size < 1:
        raise reference.fault(f"its vocab_size is {size!r}, not a number of ids")
    eod = getattr(tokenizer, "eod", None)
    if not isinstance(eod, int) or not 0 <= eod < size:
        raise reference.fault(f"its eod, which ends a document, is {eod!r}, not an id below its vocab_size {size}")
    lacks = [name for name in ("encode", "encode_batch", "decode") if not callable(getattr(tokenizer, name, None))]
    if lacks:
        raise reference.fault(f"it has no method {lacks[0]}")
    return tokenizer


def encode_batch(reference: ComponentRef, tokenizer: Tokenizer, texts: Sequence[str]) -> list[NDArray[np.int32]]:
    """The ids of each text. Raises PluginError for a fault of the tokenizer, such as an id with a fraction."""
    with reference.blamed():
        found = [np.asarray(ids) if len(ids) else np.empty(0, np.int32) for ids in tokenizer.encode_batch(texts)]
        ids = np.concatenate([np.zeros(1, np.int32), *found])
    if len(found) != len(texts) or ids.dtype.kind != "i" or ids.min() < 0 or ids.max() >= tokenizer.vocab_size:
        raise reference.fault("encode_batch() does not give a list of whole numbers below its vocab_size for each text")
    return [each.astype(np.int32, copy=False) for each in found]


@frozen
class CheckedTokenizer:
    """A tokenizer for those who cannot name it: `encode_batch` is as the function of that name."""

    _reference: ComponentRef
    _tokenizer: Tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [ids.tolist() for ids in encode_batch(self._reference, self._tokenizer, texts)]


def padded_vocab(plan: ModelPlan, tokenizer_vocab_size: int | None) -> int:
    """Rows of the embedding: `padded-vocab-size`, or the tokenizer's vocabulary rounded up to a multiple of
    `make-vocab-size-divisible-by` (50257 with 128 gives 50304).

    Raises ConfigError when neither is known, or when the tokenizer has more ids than rows were asked for.
    """
    if plan.padded_vocab_size is not None:
        if tokenizer_vocab_size is not None and tokenizer_vocab_size > plan.padded_vocab_size:
            said = f"is smaller than the tokenizer's {tokenizer_vocab_size} ids"
            raise ConfigError(f"padded-vocab-size {plan.padded_vocab_size} {said}")
        return plan.padded_vocab_size
    if tokenizer_vocab_size is None:
        raise ConfigError("the size of the vocabulary is not known", hint="set tokenizer-type or padded-vocab-size")
    multiple = plan.make_vocab_size_divisible_by
    return -(-tokenizer_vocab_size // multiple) * multiple
