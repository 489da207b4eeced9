"""Documents of text from files, one at a time."""

from __future__ import annotations

import hashlib
import json
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from attrs import define, field, frozen

from neox_core.errors import DataError

SUFFIXES = (".jsonl", ".txt")
NOT_OURS = frozenset({"site-packages", "dist-packages", "__pycache__"})
NOT_EVERYWHERE = frozenset({"test", "tests", "idle_test"})  # Linux distributions package them apart


@frozen
class Document:
    """One text. `bytes_read`: how far reading it moved on in the files, for the progress bar."""

    text: str
    bytes_read: int


@define
class Tally:
    """What became of the files and lines."""

    undecodable: int = 0
    empty: int = 0


@frozen
class Corpus:
    """Text files in the order in which their documents are written.

    root: that the paths are relative to, where it is given.
    json_key: member of each line of a .jsonl file that holds the text.
    skip_undecodable: leave out files that are not UTF-8, instead of stopping at the first.
    """

    files: tuple[Path, ...]
    root: Path = field(factory=Path)
    json_key: str = "text"
    skip_undecodable: bool = False

    @property
    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    def fingerprint(self) -> str:
        """SHA-256 of the names, lengths and times of change of the files, and of how they are read."""
        known = hashlib.sha256(f"{self.json_key}\0{self.skip_undecodable}".encode())
        for path in self.files:
            stat = path.stat()
            known.update(f"\0{_relative(path, self.root)}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
        return known.hexdigest()

    def documents(self, tally: Tally) -> Iterator[Document]:
        """Raises DataError naming file and line for what cannot be read."""
        for path in self.files:
            try:
                found = self._lines(path) if path.suffix == ".jsonl" else self._whole(path, tally)
                for document in found:
                    tally.empty += not document.text
                    yield document
            except OSError as error:
                raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error

    def _whole(self, path: Path, tally: Tally) -> Iterator[Document]:
        raw = path.read_bytes()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            if not self.skip_undecodable:
                raise DataError(
                    f"{path}: is not UTF-8 at byte {error.start}", hint="convert it, for instance with iconv -t utf-8"
                ) from error
            tally.undecodable += 1
            tally.empty -= 1
            text = ""
        yield Document(text, len(raw))

    def _lines(self, path: Path) -> Iterator[Document]:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield Document(self._text_of(line, f"{path}:{number}"), len(line))

    def _text_of(self, line: bytes, where: str) -> str:
        if not line.strip():
            return ""
        try:
            record = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: is not UTF-8 at byte {error.start} of the line") from error
        except ValueError as error:
            hint = "each line of a .jsonl file is one JSON object"
            raise DataError(f"{where}: is not JSON: {error}", hint=hint) from error
        text = record.get(self.json_key) if isinstance(record, dict) else None
        if isinstance(text, str):
            return text
        has = f"it has {', '.join(sorted(record)) or 'no members'}" if isinstance(record, dict) else "it is no object"
        raise DataError(f"{where}: holds no text under {self.json_key!r}; {has}", hint="name the member by --json-key")


def standard_library() -> Corpus:
    """The source of the running Python's standard library, in an order that mixes its packages but never changes.

    Without its tests, which not every Python comes with: two machines should have about the same text.

    Splits take documents from the end: in the order of their names, the validation would be all of one package.
    """
    root = Path(sysconfig.get_path("stdlib"))
    left_out = NOT_OURS | NOT_EVERYWHERE
    found = (path for path in root.rglob("*.py") if left_out.isdisjoint(path.relative_to(root).parts))
    files = sorted(found, key=lambda path: hashlib.sha256(_relative(path, root).encode()).digest())
    if not files:
        raise DataError(f"{root}: holds no Python source", hint="use a Python that has its standard library as files")
    return Corpus(tuple(files), root, skip_undecodable=True)


def text_files(paths: Sequence[str], json_key: str | None) -> Corpus:
    """.txt and .jsonl files, and those below folders, in the order given and by name within a folder.

    json_key None stands for "text". Raises DataError for a path that is not there or holds neither.
    """
    files = [file for path in paths for file in _expand(Path(path))]
    if json_key is not None and not any(file.suffix == ".jsonl" for file in files):
        raise DataError("--json-key is of no use: no .jsonl file is among what is read", hint="leave it out")
    return Corpus(tuple(files), json_key="text" if json_key is None else json_key)


def batches(documents: Iterable[Document], num_bytes: int) -> Iterator[list[Document]]:
    """Lists of documents of about `num_bytes` each; a longer document makes a list of its own."""
    batch: list[Document] = []
    held = 0
    for document in documents:
        batch.append(document)
        held += document.bytes_read
        if held >= num_bytes:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _expand(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
        if not files:
            raise DataError(f"{path}: holds no {' or '.join(SUFFIXES)} files")
        return files
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if path.suffix not in SUFFIXES:
        raise DataError(
            f"{path}: is neither {' nor '.join(SUFFIXES)}",
            hint="a .txt file is one document; a .jsonl file has one JSON object a line",
        )
    return [path]


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()
