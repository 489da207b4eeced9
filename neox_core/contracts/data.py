"""Datasets of tokens, and tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TokenSource(Protocol):
    """Read-only documents of token ids, the units that are shuffled and split over training, validation and test.

    * Reading changes nothing on disk, and forked workers may read at the same time.
    """

    sizes: NDArray[np.int32]
    """Length of each document in tokens, [documents], 0 or more."""

    dtype: np.dtype[Any]
    """Integer dtype of the ids as stored."""

    def read(self, document: int, offset: int = 0, length: int | None = None) -> NDArray[Any]:
        """The ids of a part of one document, [length]; a view where the storage allows it.

        document: its index, from 0.
        offset: first token to read.
        length: tokens to read; None: to the end of the document.
        When a caller writes into the result, later reads do not change.
        """


class TokenWriter(Protocol):
    """Writes one dataset in constant memory. Before `close()` returns, nothing looks like a finished dataset."""

    def add_document(self, tokens: Sequence[int] | NDArray[Any]) -> None:
        """Append a document. Raises DataError for an id below 0 or not below `vocab_size`, and for a full disk.

        tokens: ids, a list or an array.
        """

    def close(self) -> None:
        """Finish the dataset and move its files into place atomically, over those of an earlier dataset of that name.

        No other files remain. Raises DataError; the files written so far then stay.
        """

    def abort(self) -> None:
        """Remove the files written so far. An earlier dataset of that name stays."""


class DataBackend(Protocol):
    """`target(settings) -> DataBackend`.

    A format of datasets. A prefix names one dataset; the backend knows its files and creates missing folders.

    * Raises DataError that names the file: a missing one at `open`, a cut or foreign one at the latest when it is read.
    * `data-impl: infer` builds the backend with the defaults of its settings and calls `recognises`.
    """

    def recognises(self, prefix: Path) -> bool:
        """Whether the files of `prefix` are a complete dataset of this backend. Reads only names and magic bytes."""

    def files(self, prefix: Path) -> tuple[Path, ...]:
        """The files of the dataset, whether they exist or not. Without the last one there is no dataset."""

    def open(self, prefix: Path) -> TokenSource:
        """The dataset at a prefix, to read from."""

    def create(self, prefix: Path, vocab_size: int) -> TokenWriter:
        """A writer for a new dataset. vocab_size: the writer's integer type holds every id below it."""


class TokenizingBackend(DataBackend, Protocol):
    """A backend that reads text. The core recognises it by this method."""

    def use(self, tokenizer: Tokenizer, identity: str) -> None:
        """Set the tokenizer; called before `open`, where the run has a tokenizer.

        identity: a text that changes when the tokenizer's ids change.
        """


class TokenStream(Protocol):
    """Documents of token ids in a fixed order, read from any of them on, without counting them first."""

    identity: str
    """A text that changes when the documents or their ids change."""

    def documents(
        self, first: tuple[int, int], number: int, wanted: Callable[[int], bool]
    ) -> Iterator[tuple[int, int, int, NDArray[np.int32]]]:
        """(file, record, number, ids) of each document from `first` on. Raises DataError for unreadable text.

        first: (file, record) of the first document to read; the very first document is at (0, 1).
        number: the number of that document, counted from 0 at the very first.
        wanted: whether a document is read, by its number; others are left out.
        """


class StreamingBackend(DataBackend, Protocol):
    """A backend that reads documents only in their order. The core recognises it by this method."""

    def stream(self, prefix: Path) -> TokenStream:
        """The documents at a prefix, in their order."""


class Tokenizer(Protocol):
    """`target(settings) -> Tokenizer`. Raises DataError for a missing or unreadable file.

    * The same text gives the same ids, each an integer from 0 to below `vocab_size`.
    * `decode(encode(text)) == text` for any text, if the tokenizer is lossless.
    * An optional method `to_json() -> str` gives the tokenizer.json of the library `tokenizers`, for an export.

    Planner: `(settings) -> int`, the number of ids, from the files alone.
    """

    vocab_size: int
    """Number of ids; every id is below it."""

    eod: int
    """The id that ends a document, below `vocab_size`."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The result of `encode` for each text."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids."""
