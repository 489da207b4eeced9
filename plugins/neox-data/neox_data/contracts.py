"""What `neox data prepare` asks of corpora, and of data backends and tokenizers that can do more than a run needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from attrs import field, frozen

from neox_core.contracts.data import DataBackend, TokenWriter


@frozen
class Corpus:
    """Text files, in the order in which their documents are written.

    * root: the folder that `files` are relative to.
    * json_keys: members of each line of a .jsonl file, or columns of a .parquet file, that hold text.
    * skip_undecodable: leave out files that are not UTF-8, instead of stopping at the first.
    * skip_bad: leave out records without text, and count them.
    """

    files: tuple[Path, ...]
    root: Path = field(factory=Path)
    json_keys: tuple[str, ...] = ("text",)
    skip_undecodable: bool = False
    skip_bad: bool = False


class NamedCorpus(Protocol):
    """`target(settings) -> NamedCorpus`: text that a user names instead of files."""

    def open(self, folder: Path) -> Corpus:
        """The files of the corpus, in the order of their documents. Raises DataError when they cannot be obtained.

        folder: where to keep downloaded or unpacked files, so that this is done once; `open` creates it.
        """


class ResumableWriter(TokenWriter, Protocol):
    """A writer whose work another one can continue, also after a kill: `DataBackend.resume` builds the other."""

    def checkpoint(self) -> dict[str, int]:
        """Flush everything written so far to disk. Returns the position for `resume`."""

    def leave(self) -> None:
        """Close the files and keep them for `resume`."""


class ResumableBackend(DataBackend, Protocol):
    """A backend whose writers are ResumableWriters. `neox data prepare` recognises it by this method."""

    def resume(self, prefix: Path, vocab_size: int, position: Mapping[str, int]) -> ResumableWriter:
        """A writer that continues at a checkpoint and drops what was written after it. Raises DataError.

        vocab_size: as of `create`.
        position: the result of `ResumableWriter.checkpoint`.
        """


class TrainableTokenizer(Protocol):
    """The target of a tokenizer that can be trained on text: besides being called, it has this class method."""

    def train(self, texts: Iterator[str], vocab_size: int, folder: Path) -> dict[str, str]:
        """Train on texts and write the files of the tokenizer. The same texts give the same files.

        texts: read once.
        vocab_size: largest number of ids.
        folder: an empty folder for the files.
        Returns the name of each file by its settings field: {"vocab_file": "vocab.json"}.
        """
