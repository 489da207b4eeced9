"""Documents of text from files, one at a time."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from attrs import define, frozen

from neox_core.errors import DataError
from neox_data.contracts import Corpus
from neox_data.texts import KINDS, PACKED, Record, kind_of, read_records, texts_of


@frozen
class Document:
    """One text under each key. `bytes_read`: how far reading it moved on in the files, for the progress bar.

    file, record: where it is: the number of its file, and its own in that file, counted from 1.
    """

    texts: tuple[str, ...]
    bytes_read: int
    file: int = 0
    record: int = 1

    @property
    def text(self) -> str:
        """Under the first key."""
        return self.texts[0]


@define
class Tally:
    """What became of the files and lines. first_bad: what was wrong with the first that was left out."""

    undecodable: int = 0
    empty: int = 0
    bad: int = 0
    first_bad: str = ""


def num_bytes(corpus: Corpus) -> int:
    """The length of all its files together."""
    return sum(path.stat().st_size for path in corpus.files)


def fingerprint(corpus: Corpus) -> str:
    """SHA-256 of the names, lengths and times of change of the files, and of how they are read."""
    known = hashlib.sha256(f"{corpus.json_keys}\0{corpus.skip_undecodable}\0{corpus.skip_bad}".encode())
    for path in corpus.files:
        stat = path.stat()
        known.update(f"\0{_relative(path, corpus.root)}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
    return known.hexdigest()


def read_documents(corpus: Corpus, tally: Tally, after: tuple[int, int] = (0, 0)) -> Iterator[Document]:
    """The documents behind (file, record). Raises DataError naming file and line for what cannot be read."""
    for number, path in enumerate(corpus.files):
        if number < after[0]:
            continue
        try:
            for record, (raw, read) in enumerate(read_records(path, corpus.json_keys), start=1):
                if (number, record) > after:
                    texts = _texts(corpus, raw, path, record, tally)
                    tally.empty += texts is not None and not any(texts)
                    yield Document(texts or ("",) * len(corpus.json_keys), read, number, record)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def text_files(paths: Sequence[str], json_keys: Sequence[str] = (), *, skip_bad: bool = False) -> Corpus:
    """Text files, those that patterns like `a/*.txt` stand for, and those below folders.

    In the order given, and by name within a folder or pattern. No json_keys stand for "text". Raises DataError for a
    path that is not there or holds no text, and for keys that nothing has.
    """
    files = [file for path in paths for file in _expand(path)]
    members = [kind_of(file) in {".jsonl", ".parquet"} for file in files]
    if json_keys and not any(members):
        raise DataError(
            "--json-key is of no use: no .jsonl or .parquet file is among what is read", hint="leave it out"
        )
    if len(json_keys) > 1 and not all(members):
        raise DataError(f"{files[members.index(False)]}: is one text, and there are {len(json_keys)} --json-keys")
    if len(set(json_keys)) < len(json_keys):
        raise DataError("--json-keys names a key twice")
    return Corpus(tuple(files), json_keys=tuple(json_keys) or ("text",), skip_bad=skip_bad)


def batches(documents: Iterable[Document], num_bytes: int) -> Iterator[list[Document]]:
    """Lists of documents of at most `num_bytes` each; a longer document makes a list of its own."""
    batch: list[Document] = []
    held = 0
    for document in documents:
        size = max(document.bytes_read, sum(map(len, document.texts)))  # packed text is longer than its file
        if batch and held + size > num_bytes:
            yield batch
            batch, held = [], 0
        batch.append(document)
        held += size
    if batch:
        yield batch


def _texts(corpus: Corpus, raw: Record, path: Path, record: int, tally: Tally) -> tuple[str, ...] | None:
    """None for a record that is left out."""
    is_line = kind_of(path) == ".jsonl"
    in_file = is_line or kind_of(path) == ".parquet"
    try:
        return texts_of(raw, corpus.json_keys, f"{path}:{record}" if in_file else str(path), is_line=is_line)
    except DataError as error:
        if corpus.skip_undecodable and not in_file:
            tally.undecodable += 1
        elif corpus.skip_bad:
            tally.bad += 1
            tally.first_bad = tally.first_bad or error.message
        else:
            raise
        return None


def _expand(given: str) -> list[Path]:
    path = Path(given)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if kind_of(file) and file.is_file())
        if not files:
            raise DataError(f"{path}: holds no {', '.join(KINDS[:-1])} or {KINDS[-1]} files")
        return files
    if path.exists():
        if not kind_of(path):
            raise DataError(
                f"{path}: is neither {' nor '.join(KINDS)}, also not with {' or '.join(PACKED)}",
                hint="a .txt file is one document; a .jsonl file has one JSON object a line",
            )
        return [path]
    if not glob.has_magic(given):
        raise DataError(f"{path}: no such file or folder")
    found = map(Path, sorted(glob.glob(given, recursive=True)))  # noqa: PTH207 - a Path has no absolute patterns
    files = [file for file in found if kind_of(file) and file.is_file()]
    if not files:
        raise DataError(f"{given}: matches no {', '.join(KINDS[:-1])} or {KINDS[-1]} files")
    return files


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()
