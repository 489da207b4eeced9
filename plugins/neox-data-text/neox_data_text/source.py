"""Reads documents of text files as tokens, one after the other, without counting or storing them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from neox_data.api import Corpus, Tally, fingerprint, kind_of, read_documents, text_files

from neox_core.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from neox_core.contracts import Tokenizer
    from neox_data_text.settings import TextSettings

BATCH_BYTES = 1 << 18
"""Amount of text that is encoded together."""

Found = tuple[int, int, int]


class TextStream:
    """The documents of one dataset. identity: changes when they do."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, identity: str, *, append_eod: bool) -> None:
        self._corpus, self._tokenizer = corpus, tokenizer
        self._ending = [tokenizer.eod] if append_eod else []
        known = f"{fingerprint(corpus)} {identity} {append_eod}"
        self.identity = hashlib.sha256(known.encode()).hexdigest()

    def documents(
        self, first: tuple[int, int], number: int, wanted: Callable[[int], bool]
    ) -> Iterator[tuple[int, int, int, NDArray[np.int32]]]:
        """(file, record, number, ids) of the documents from (file, record) `first` on, which has that number.

        Records that hold no text have a number too, and do not come. Raises DataError naming file and line.
        """
        places: list[Found] = []
        texts: list[str] = []
        held = 0
        file, record = first
        behind = read_documents(self._corpus, Tally(), (file, record - 1))
        for each, document in enumerate(behind, start=number):
            if document.text and wanted(each):
                places.append((document.file, document.record, each))
                texts.append(document.text)
                held += len(document.text)
            if held >= BATCH_BYTES:
                yield from self._encoded(places, texts)
                places, texts, held = [], [], 0
        yield from self._encoded(places, texts)

    def _encoded(self, places: list[Found], texts: list[str]) -> Iterator[tuple[int, int, int, NDArray[np.int32]]]:
        for place, ids in zip(places, self._tokenizer.encode_batch(texts), strict=True):
            yield *place, np.array([*ids, *self._ending], dtype=np.int32)


class TextBackend:
    """Text files; a prefix is a file, a folder or a pattern."""

    def __init__(self, settings: TextSettings) -> None:
        self._settings = settings
        self._tokenizer: Tokenizer | None = None
        self._identity = ""

    def use(self, tokenizer: Tokenizer, identity: str) -> None:
        """The tokenizer of the run, and what changes when its ids do."""
        self._tokenizer, self._identity = tokenizer, identity

    def recognises(self, prefix: Path) -> bool:
        return kind_of(prefix) is not None

    def files(self, prefix: Path) -> tuple[Path, ...]:
        return text_files([str(prefix)]).files

    def stream(self, prefix: Path) -> TextStream:
        """Raises DataError for a path that is not there or holds no text, and without a tokenizer."""
        if self._tokenizer is None:
            raise DataError("data-impl: text needs a tokenizer", hint="set tokenizer-type")
        corpus = Corpus(self.files(prefix), json_keys=(self._settings.text_key,))
        return TextStream(corpus, self._tokenizer, self._identity, append_eod=self._settings.append_eod)

    def open(self, prefix: Path) -> NoReturn:
        hint = "make a dataset of it with `neox data prepare`"
        raise DataError(f"{prefix}: text is read in order, without access to single documents", hint=hint)

    def create(self, prefix: Path, vocab_size: int) -> NoReturn:
        raise DataError(f"{prefix}: the format `text` is read only", hint="write the dataset as mmap")
