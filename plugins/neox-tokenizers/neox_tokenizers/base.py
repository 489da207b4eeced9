"""What the tokenizers of this package have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from neox_core.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"


class LibraryTokenizer:
    """A tokenizer of the `tokenizers` library, which encodes a batch on all cores.

    vocab_size: number of ids, gaps included.
    eod: the id of `<|endoftext|>`.
    """

    def __init__(self, tokenizer: Tokenizer, source: str) -> None:
        eod = tokenizer.token_to_id(END_OF_TEXT)
        if eod is None:
            raise DataError(
                f"{source}: has no {END_OF_TEXT}, which ends a document", hint=f"add {END_OF_TEXT} to the vocabulary"
            )
        self._tokenizer = tokenizer
        self.eod: int = eod
        self.vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)


def require_file(path: str, key: str) -> None:
    """Raises DataError when the file that `key` names is not there or cannot be read."""
    try:
        with Path(path).open("rb"):
            return
    except FileNotFoundError:
        raise DataError(f"{path}: no such file ({key})", hint="`neox data prepare` trains and writes one") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({key}): {error.strerror or error}") from error
