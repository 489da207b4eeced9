"""Documents of text files by number: places and lengths are known, the tokens are made when they are asked for."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from neox_core.build.arrays import stored
from neox_core.build.corpus import Corpus, text_files
from neox_core.build.progress import progress
from neox_core.build.texts import PACKED, kind_of, texts_of
from neox_core.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from neox_core.contracts import Tokenizer
    from neox_data_text.settings import TextSettings

KEPT = 64
"""Documents whose tokens are kept: a document is read by several samples, often one after the other."""
BATCH_BYTES = 1 << 20
FORMAT = 1


class TextSource:
    """One dataset. sizes: int32 [documents], tokens of each, with the one that ends it. Empty texts are left out."""

    dtype = np.dtype("int32")

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, identity: str, place: Path) -> None:
        self._corpus, self._tokenizer = corpus, tokenizer
        self._key = corpus.json_keys[0]
        self._kept: OrderedDict[int, NDArray[np.int32]] = OrderedDict()
        known = hashlib.sha256(f"{FORMAT} {corpus.fingerprint()} {identity}".encode()).hexdigest()
        self.sizes, self._places = stored([place.with_name(f"{place.name}-{known[:24]}")], known, self._index)

    def read(self, document: int, offset: int = 0, length: int | None = None) -> NDArray[np.int32]:
        """Ids [length] of one document. Raises IndexError outside of it, DataError when its file has been changed."""
        if not 0 <= document < len(self.sizes):
            raise IndexError(f"no document {document}, there are {len(self.sizes)}")
        ids = self._kept.get(document)
        if ids is None:
            ids = self._kept[document] = self._tokens(document)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        length = len(ids) - offset if length is None else length
        if offset < 0 or length < 0 or offset + length > len(ids):
            raise IndexError(f"document {document} has {len(ids)} tokens, not {offset} to {offset + length}")
        return ids[offset : offset + length]

    def _tokens(self, document: int) -> NDArray[np.int32]:
        number, start, stop = self._places[document].tolist()
        path = self._corpus.files[number]
        try:
            with path.open("rb") as file:
                file.seek(start)
                text = self._text(path, file.read(stop - start), start)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
        (ids,) = self._encoded([text])
        if len(ids) != self.sizes[document]:
            raise DataError(f"{path}: was changed while it was read", hint="start the run again")
        ids.flags.writeable = False
        return ids

    def _index(self) -> tuple[NDArray[Any], ...]:
        """Sizes [documents] and (file, first byte, end) [documents, 3] of all documents."""
        sizes: list[NDArray[np.int32]] = []
        places: list[NDArray[np.int64]] = []
        with progress("counting tokens", self._corpus.num_bytes) as advance:
            for found in self._batches():
                ids = self._encoded([text for _, text in found])
                sizes.append(np.array([len(each) for each in ids], dtype=np.int32))
                places.append(np.array([place for place, _ in found], dtype=np.int64))
                advance(int((places[-1][:, 2] - places[-1][:, 1]).sum()))
        if not sizes:
            raise DataError("there is no text in what was read, so there is nothing to train on")
        return np.concatenate(sizes), np.concatenate(places)

    def _batches(self) -> Iterator[list[tuple[tuple[int, int, int], str]]]:
        batch, held = [], 0
        for number, path in enumerate(self._corpus.files):
            start = 0
            for raw in _records(path):
                text = self._text(path, raw, start)
                if text:
                    batch.append(((number, start, start + len(raw)), text))
                    held += len(raw)
                start += len(raw)
                if held >= BATCH_BYTES:
                    yield batch
                    batch, held = [], 0
        if batch:
            yield batch

    def _text(self, path: Path, raw: bytes, start: int) -> str:
        is_line = kind_of(path) == ".jsonl"
        where = f"{path}, at byte {start}" if is_line else str(path)
        return texts_of(raw, [self._key], where, is_line=is_line)[0]

    def _encoded(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        return [np.array([*ids, self._tokenizer.eod], dtype=np.int32) for ids in self._tokenizer.encode_batch(texts)]


class TextBackend:
    """Text files; a prefix is a file, a folder or a pattern."""

    def __init__(self, settings: TextSettings) -> None:
        self._key = settings.text_key
        self._tokenizer: Tokenizer | None = None
        self._identity = ""

    def use(self, tokenizer: Tokenizer, identity: str) -> None:
        """The tokenizer of the run, and what changes when its ids do."""
        self._tokenizer, self._identity = tokenizer, identity

    def recognises(self, prefix: Path) -> bool:
        return kind_of(prefix) in {".jsonl", ".txt"} and prefix.suffix not in PACKED

    def files(self, prefix: Path) -> tuple[Path, ...]:
        return self._corpus(prefix).files

    def open(self, prefix: Path) -> TextSource:
        if self._tokenizer is None:
            raise DataError("data-impl: text needs a tokenizer", hint="set tokenizer-type")
        folder = prefix if prefix.is_dir() else prefix.parent
        place = folder / ".neox-index" / (prefix.name.replace("*", "-").replace("?", "-") or "text")
        return TextSource(self._corpus(prefix), self._tokenizer, self._identity, place)

    def create(self, prefix: Path, vocab_size: int) -> NoReturn:
        raise DataError(f"{prefix}: the format `text` is read only", hint="write tokens as mmap")

    def _corpus(self, prefix: Path) -> Corpus:
        corpus = text_files([str(prefix)])
        for path in corpus.files:
            if path.suffix in PACKED or kind_of(path) == ".parquet":
                raise DataError(f"{path}: cannot be read from the middle", hint="use `neox data prepare` for it")
        return Corpus(corpus.files, json_keys=(self._key,))


def _records(path: Path) -> Iterator[bytes]:
    try:
        if kind_of(path) == ".txt":
            yield path.read_bytes()
            return
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
