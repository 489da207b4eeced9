"""What the tokenizers of this package have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_core.errors import DataError
from neox_core.files import open_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"


class LibraryTokenizer:
    """A tokenizer of the `tokenizers` library, which encodes a batch on all cores.

    vocab_size: number of ids, gaps included.
    eod: the id of `end`.
    """

    def __init__(self, tokenizer: Tokenizer, source: str, end: str = END_OF_TEXT) -> None:
        eod = tokenizer.token_to_id(end)
        if eod is None:
            raise DataError(f"{source}: has no {end}, which ends a document", hint=f"add {end} to the vocabulary")
        self._tokenizer = tokenizer
        self.eod: int = eod
        ids = tokenizer.get_vocab(with_added_tokens=True).values()
        if len({*ids}) < len(ids):
            raise DataError(f"{source}: several tokens have one id", hint="train a vocabulary, or get the file again")
        self.vocab_size = max(ids) + 1

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]

    def to_json(self) -> str:
        """The text of a tokenizer.json, in which the end of a document is a special token."""
        from tokenizers import AddedToken, Tokenizer

        published = Tokenizer.from_str(self._tokenizer.to_str())
        published.add_special_tokens([AddedToken(published.id_to_token(self.eod), special=True, normalized=False)])
        text: str = published.to_str()
        return text

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def library(name: str, tokenizer: str) -> Any:
    """The module of a library that only `tokenizer` needs. Raises DataError when it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise DataError(f"{tokenizer} needs the library {name}", hint=f"pip install {name}") from error


def require_file(path: str, key: str) -> None:
    """Raises DataError when the file that `key` names is not there or cannot be read."""
    try:
        with open_file(Path(path)):
            return
    except FileNotFoundError:
        raise DataError(f"{path}: no such file ({key})", hint="`neox data prepare` trains and writes one") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({key}): {error.strerror or error}") from error
