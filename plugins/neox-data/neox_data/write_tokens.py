"""Writes documents into datasets, with a journal from which a stopped run can continue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import asdict, define, frozen

from neox_core.data.records import read_json
from neox_core.errors import DataError
from neox_data.corpus import Document, Tally, batches, num_bytes, read_documents
from neox_data.encode import Encoded, Encoder
from neox_data.manifest import write_json
from neox_data.progress import progress

if TYPE_CHECKING:
    from neox_core.contracts import DataBackend, Tokenizer, TokenWriter
    from neox_core.plan.runfile import ComponentRef
    from neox_data.contracts import Corpus

BATCH_BYTES, SHARED_BATCH_BYTES = 1 << 18, 1 << 16
"""Text that is encoded together: as ids it takes some forty times as much memory for a moment. The second: of several
processes, the last of which may have such a batch left when the others have none."""


@frozen
class Written:
    """What was written: documents and tokens of each dataset, and what of the text was left out."""

    documents: tuple[int, ...]
    tokens: tuple[int, ...]
    undecodable: int
    empty: int
    bad: int
    first_bad: str


@frozen
class Journal:
    """Where the note of how far a run has come is kept. digest: of all that the datasets are made from.

    every_bytes: text between two notes.
    """

    path: Path
    digest: str
    every_bytes: int

    def read(self) -> dict[str, Any]:
        """Raises DataError when there is none, or it is of something else."""
        record = read_json(self.path)
        if not record:
            raise DataError(f"{self.path.parent}: nothing there to resume", hint="leave out --resume")
        if record.get("digest") != self.digest:
            hint = "leave out --resume to start over"
            raise DataError(f"{self.path.parent}: the unfinished work there is of other texts or settings", hint=hint)
        return record

    def remove(self) -> None:
        """Remove the file, when the dataset is complete."""
        self.path.unlink(missing_ok=True)


@define
class _Progress:
    """The part of the journal that changes. after: (file, record) of the last document that was written."""

    documents: list[int]
    tokens: list[int]
    after: tuple[int, int] = (0, 0)
    bytes_read: int = 0


def write_tokens(
    corpus: Corpus,
    tokenizer_ref: ComponentRef,
    tokenizer: Tokenizer,
    backend: DataBackend,
    prefixes: Sequence[Path],
    journal: Journal,
    *,
    append_eod: bool,
    workers: int,
    ftfy: bool,
    sentences: str | None = None,
    resume: bool,
    before_closing: Callable[[], None],
) -> Written:
    """Write one dataset for each of the corpus's keys, at `prefixes`.

    sentences: the language by whose rules documents are split; None: they stay whole.
    before_closing: called when all is written and nothing is in place yet. Raises DataError for texts that cannot be
    read and for a disk that is full; what was written stays for `resume` if the journal has a note of it.
    """
    if sentences is not None and not getattr(backend, "takes_sentences", False):
        raise DataError("datasets of this format do not keep sentences apart", hint="set --data-impl mmap")
    state, tally = _Progress([0] * len(prefixes), [0] * len(prefixes)), Tally()
    writers: list[Any]
    if resume:
        writers = _begin(backend, prefixes, tokenizer.vocab_size, journal, state, tally)
    else:
        journal.remove()
        writers = [backend.create(prefix, tokenizer.vocab_size) for prefix in prefixes]
    encoder = Encoder(tokenizer_ref, workers, ftfy, sentences)
    ending = np.array([tokenizer.eod] if append_eod else [], dtype=np.int32)
    noted = resume
    unnoted = 0
    try:
        with progress("writing tokens", num_bytes(corpus)) as advance:
            advance(state.bytes_read)
            size = BATCH_BYTES if workers == 1 else SHARED_BATCH_BYTES
            todo = _labelled(batches(read_documents(corpus, tally, state.after), size), tally)
            with closing(encoder.batches(todo)) as encoded:
                for (documents, tally_then), ids in encoded:
                    _add(writers, documents, ids, ending, state)
                    read = sum(document.bytes_read for document in documents)
                    unnoted += read
                    if unnoted >= journal.every_bytes and all(hasattr(writer, "checkpoint") for writer in writers):
                        _note(journal, writers, state, tally_then)
                        noted, unnoted = True, 0
                    advance(read)
        if not all(state.documents):
            raise DataError("there is no text in what was read", hint="all files or lines of it are empty")
        before_closing()
        for writer in writers:
            writer.close()
    except BaseException as error:  # Ctrl-C as well
        for writer in writers:
            resumable: Any = writer  # where it is noted
            resumable.leave() if noted else writer.abort()
        if noted and isinstance(error, DataError):
            raise DataError(error.message, hint=f"{error.hint}; --resume continues".removeprefix("; ")) from error
        raise
    return Written(tuple(state.documents), tuple(state.tokens), **asdict(tally))


def _begin(
    backend: DataBackend, prefixes: Sequence[Path], vocab_size: int, journal: Journal, state: _Progress, tally: Tally
) -> list[TokenWriter]:
    """Writers that continue at the position in the journal, and `state` and `tally` as they were there."""
    record = journal.read()
    resumed = getattr(backend, "resume", None)
    if resumed is None:
        raise DataError("datasets of this format cannot be continued", hint="leave out --resume")
    state.documents, state.tokens = record["documents"], record["tokens"]
    state.after, state.bytes_read = tuple(record["after"]), record["bytes_read"]
    for name, value in record["tally"].items():
        setattr(tally, name, value)
    return [resumed(prefix, vocab_size, position) for prefix, position in zip(prefixes, record["writers"], strict=True)]


def _labelled(
    lists: Iterator[list[Document]], tally: Tally
) -> Iterator[tuple[tuple[list[Document], dict[str, Any]], list[str]]]:
    """((documents, the tally so far), their texts) of each list: reading may be ahead of writing."""
    for documents in lists:
        yield (documents, asdict(tally)), [text for document in documents for text in document.texts if text]


def _add(
    writers: Sequence[Any], documents: Sequence[Document], ids: Sequence[Encoded], ending: Any, state: _Progress
) -> None:
    encoded = iter(ids)
    for document in documents:
        for index, text in enumerate(document.texts):
            if text:
                found = next(encoded)
                tokens, apart = np.concatenate([found.ids, ending]), found.sentences
                if apart is None:
                    writers[index].add_document(tokens)
                else:
                    whole = (*apart[:-1], apart[-1] + len(ending)) if apart else (len(ending),) * bool(len(ending))
                    writers[index].add_document(tokens, whole)
                state.documents[index] += 1
                state.tokens[index] += len(tokens)
        state.bytes_read += document.bytes_read
    state.after = (documents[-1].file, documents[-1].record)


def _note(journal: Journal, writers: Sequence[Any], state: _Progress, tally: dict[str, Any]) -> None:
    positions = [writer.checkpoint() for writer in writers]
    write_json(journal.path, {"digest": journal.digest, **asdict(state), "tally": tally, "writers": positions})
