"""Datasets of tokens, and tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attrs import field, frozen

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TokenSource(Protocol):
    """Read-only documents of token ids. Safe to use from forked workers; reading changes nothing on disk.

    A document is the unit that is split over train, validation and test, and shuffled.
    """

    sizes: NDArray[np.int32]
    """Tokens of each document, [documents], 0 or more."""

    dtype: np.dtype[Any]
    """Integer dtype of the ids as stored."""

    def read(self, document: int, offset: int = 0, length: int | None = None) -> NDArray[Any]:
        """Ids [length] of one document from `offset` on, to its end by default. A view where the storage allows.

        What a caller writes into them, where they can be written, changes nothing that is read next.
        """
        ...


class TokenWriter(Protocol):
    """Writes one dataset in constant memory. Nothing that looks finished exists before `close()` returns."""

    def add_document(self, tokens: Sequence[int] | NDArray[Any]) -> None:
        """tokens: list or array. Raises DataError for an id below 0 or not below `vocab_size`, and for a full disk."""
        ...

    def close(self) -> None:
        """Finish and move the files into place atomically, over those of a dataset that had the name; leave no others.

        Raises DataError; what was written is then still there.
        """
        ...

    def abort(self) -> None:
        """Remove what was written; a dataset that had the name before is still there."""
        ...


class ResumableWriter(TokenWriter, Protocol):
    """A writer that another can go on from, also after a kill: `DataBackend.resume` makes the other."""

    def checkpoint(self) -> dict[str, int]:
        """Put on disk what was written so far, and return what `resume` needs to go on from there."""
        ...

    def leave(self) -> None:
        """Let go of what was written, for `resume`, instead of removing it."""
        ...


class DataBackend(Protocol):
    """`target(settings) -> DataBackend`.

    A prefix names one dataset; the backend knows its files, and makes folders that are not there. Raises DataError
    naming the file for what is missing, truncated or of another format, at the latest when all of it is read.
    `data-impl: infer` makes one with the defaults of its settings, and asks it by `recognises`.
    """

    def recognises(self, prefix: Path) -> bool:
        """Whether the files of `prefix` are a whole dataset of this backend: looks at names and magic bytes only."""
        ...

    def files(self, prefix: Path) -> tuple[Path, ...]:
        """The files of the dataset, there or not. Without the last one there is no dataset."""
        ...

    def open(self, prefix: Path) -> TokenSource: ...

    def create(self, prefix: Path, vocab_size: int) -> TokenWriter:
        """A writer whose integer type holds every id below `vocab_size`."""
        ...


class ResumableBackend(DataBackend, Protocol):
    """A backend whose writers are ResumableWriters. Preparing asks by the method whether it is one."""

    def resume(self, prefix: Path, vocab_size: int, position: Mapping[str, int]) -> ResumableWriter:
        """A writer that goes on at a checkpoint; what was written behind it is dropped. Raises DataError."""
        ...


class TokenizingBackend(DataBackend, Protocol):
    """A backend that reads text. The core asks by the method whether it is one."""

    def use(self, tokenizer: Tokenizer, identity: str) -> None:
        """Called before `open`, where the run has a tokenizer. identity: changes when its ids do."""
        ...


class TokenStream(Protocol):
    """Documents of token ids in an order of their own: read from any of them on, but not counted before."""

    identity: str
    """Changes when the documents or their ids do."""

    def documents(
        self, first: tuple[int, int], number: int, wanted: Callable[[int], bool]
    ) -> Iterator[tuple[int, int, int, NDArray[np.int32]]]:
        """(file, record, number, ids) of the documents from (file, record) `first` on, to the last.

        number: of the first, where the first of all, at (0, 1), has number 0; those that are not `wanted` by their
        number do not come. Raises DataError for what cannot be read.
        """
        ...


class StreamingBackend(DataBackend, Protocol):
    """A backend that reads documents in their own order only. The core asks by the method whether it is one."""

    def stream(self, prefix: Path) -> TokenStream: ...


class Tokenizer(Protocol):
    """`target(settings) -> Tokenizer`.

    `decode(encode(text)) == text` for any text, when the tokenizer is lossless. The same text gives the same ids, each
    a whole number from 0 to below `vocab_size`. Raises DataError for a missing or unreadable file.

    Planner: `(settings) -> int`, the number of ids, from the files alone. A method `to_json() -> str`, where it has
    one, gives the tokenizer.json of the library `tokenizers`, for an export.
    """

    vocab_size: int
    """Number of ids: every id is below it."""

    eod: int
    """The id that ends a document, below `vocab_size`."""

    def encode(self, text: str) -> list[int]: ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """For each text what `encode` gives."""
        ...

    def decode(self, ids: Iterable[int]) -> str: ...


class TrainableTokenizer(Protocol):
    """The target of a tokenizer that can be learnt from text: it has this class method besides being called."""

    def train(self, texts: Iterator[str], vocab_size: int, folder: Path) -> dict[str, str]:
        """Learn at most `vocab_size` ids from `texts`, read once, and write files into the empty `folder`.

        Returns the names of the files by the settings field that names each: {"vocab_file": "vocab.json"}. The same
        texts give the same files.
        """
        ...


@frozen
class Corpus:
    """Text files in the order in which their documents are written.

    root: the folder that the paths are relative to, where it is given.
    json_keys: members of each line of a .jsonl file, or columns of a .parquet file, that hold text.
    skip_undecodable: leave out files that are not UTF-8, instead of stopping at the first.
    skip_bad: leave out records that hold no text, and count them.
    """

    files: tuple[Path, ...]
    root: Path = field(factory=Path)
    json_keys: tuple[str, ...] = ("text",)
    skip_undecodable: bool = False
    skip_bad: bool = False


class NamedCorpus(Protocol):
    """`target(settings) -> NamedCorpus`: text that has a name."""

    def open(self, folder: Path) -> Corpus:
        """Its files, in the order of their documents, and how they are read.

        What has to be downloaded or unpacked comes into `folder`, which it makes and which is kept, so that it is done
        once. Raises DataError when it cannot be got.
        """
        ...
