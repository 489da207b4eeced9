"""The check of a data backend: it reads what it wrote, and refuses incomplete files."""

from __future__ import annotations

import hashlib
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_author.testing.clauses import clauses, has, hold
from neox_author.testing.plugins import build
from neox_core.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from neox_core.contracts import DataBackend, TokenSource, TokenWriter
    from neox_core.hooks.catalog import Catalog

    Documents = list[NDArray[np.int64]]

VOCABULARIES = (256, 257, 32768, 32769, 65499, 65500, 65536, 65537, 100_000, 2**31 - 1)


@clauses
def check_data_backend(catalog: Catalog, name: str, **settings: Any) -> None:
    """Check the clauses of contracts.DataBackend in a temporary folder, for vocabularies around every integer type.

    Raises AssertionError with the clause that does not hold.
    """
    entry = catalog.find("data backend", name)
    backend: DataBackend = entry.load()(build(entry, **settings))
    has(backend, "a data backend", "recognises", "files", "open", "create")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for vocab_size in VOCABULARIES:
            _check_round_trip(backend, folder / f"vocabulary-{vocab_size}" / "tokens", vocab_size)
        _check_foreign_ids(backend, folder / "foreign" / "tokens")
        _check_unfinished(backend, folder / "unfinished" / "tokens")
        _check_replacing(backend, folder / "replaced" / "tokens")
        _check_reading_changes_nothing(backend, folder / "read" / "tokens")
        _check_damage(backend, folder / "damaged" / "tokens")
        _check_full_disk(backend, folder / "full" / "tokens")


def _check_round_trip(backend: DataBackend, prefix: Path, vocab_size: int) -> None:
    import numpy as np

    documents = _documents(vocab_size)
    _write(backend, prefix, documents, vocab_size)
    hold(backend.recognises(prefix), "recognises() is true of a dataset that it wrote")
    files = backend.files(prefix)
    hold(isinstance(files, tuple), f"files() gives a tuple of paths, not {files!r}")
    hold(
        files and all(file.is_file() for file in files),
        "files() names the files of the dataset, and all are there after close()",
    )
    source = backend.open(prefix)
    hold(np.dtype(source.dtype).kind in "iu", f"dtype is an integer type, not {source.dtype}")
    hold(
        isinstance(source.sizes, np.ndarray) and source.sizes.ndim == 1 and source.sizes.dtype.kind in "iu",
        f"sizes is an array of whole numbers, [documents], not {source.sizes!r}",
    )
    sizes = [len(document) for document in documents]
    hold(
        list(source.sizes) == sizes,
        f"sizes holds the tokens of every document: {list(source.sizes)} instead of {sizes}",
    )
    for index, document in enumerate(documents):
        where = f"with a vocabulary of {vocab_size}, document {index}"
        ids = source.read(index)
        hold(
            isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "iu",
            f"read() gives an array of whole numbers, [length], not {ids!r}",
        )
        hold(list(ids) == list(document), f"read() gives the ids that were written ({where})")
        for offset in range(0, len(document), max(1, len(document) // 3)):
            part = list(source.read(index, offset))
            hold(part == list(document[offset:]), f"read(offset={offset}) begins there ({where})")
            part = list(source.read(index, offset, 1))
            hold(part == list(document[offset : offset + 1]), f"read(offset={offset}, length=1) ({where})")


def _check_foreign_ids(backend: DataBackend, prefix: Path) -> None:
    for wrong in (-1, 1000, 65536 + 1, 2**32 + 1):
        writer = backend.create(prefix, 1000)
        _require_error(
            partial(writer.add_document, [1, wrong, 2]),
            f"add_document() raises DataError for id {wrong} in a vocabulary of 1000",
        )
        writer.abort()


def _check_unfinished(backend: DataBackend, prefix: Path) -> None:
    hold(not backend.recognises(prefix), "recognises() is false where there is nothing")
    _require_error(lambda: backend.open(prefix), "open() raises DataError where there is nothing", prefix)
    writer = backend.create(prefix, 1000)
    for document in _documents(1000):
        writer.add_document(document)
        hold(
            not backend.recognises(prefix) and not backend.files(prefix)[-1].exists(),
            "nothing that looks finished exists before close() returns",
        )
    _require_error(lambda: backend.open(prefix), "open() raises DataError before close()")
    writer.abort()
    hold(not (left := _files_in(prefix.parent)), f"abort() removes the files written so far; left are {left}")


def _check_replacing(backend: DataBackend, prefix: Path) -> None:
    old, new = _documents(1000), _documents(1000)[1:]
    _write(backend, prefix, old, 1000)
    for finish in (False, True):
        writer = backend.create(prefix, 1000)
        for document in new:
            writer.add_document(document)
        hold(_holds(backend, prefix, old), "the dataset that has the name stays whole until close()")
        if finish:
            writer.close()
        else:
            writer.abort()
        expected = new if finish else old
        hold(_holds(backend, prefix, expected), f"{'close() replaces' if finish else 'abort() keeps'} the old one")
    left = sorted({*_files_in(prefix.parent)} - {file.name for file in backend.files(prefix)})
    hold(not left, f"close() leaves no other files; left are {left}")


def _check_reading_changes_nothing(backend: DataBackend, prefix: Path) -> None:
    documents = _documents(1000)
    _write(backend, prefix, documents, 1000)
    before = _hashes(prefix.parent)
    source = backend.open(prefix)
    ids = source.read(0)
    if ids.flags.writeable:
        ids[:] = 0
    hold(_same(source, documents), "what a caller does to ids it has read does not change what is read next")
    del source, ids
    hold(_hashes(prefix.parent) == before, "reading changes nothing on disk")


def _check_damage(backend: DataBackend, prefix: Path) -> None:
    documents = _documents(1000)
    _write(backend, prefix, documents, 1000)
    whole = prefix.parent / "whole"
    whole.mkdir()
    files = backend.files(prefix)
    for file in files:
        shutil.copy(file, whole)
    for file in files:
        length = file.stat().st_size
        for kept in sorted({0, 1, length // 2, length - 1} & {*range(length)}):
            file.write_bytes((whole / file.name).read_bytes()[:kept])
            _require_error(
                lambda: [backend.open(prefix).read(index) for index in range(len(documents))],
                f"a file of which {kept} of {length} bytes are left is a DataError",
                file,
            )
        file.unlink()
        hold(not backend.recognises(prefix), f"recognises() is false where a file is missing; not without {file.name}")
        _require_error(lambda: backend.open(prefix), "a missing file is a DataError", file)
        shutil.copy(whole / file.name, file)
    hold(_same(backend.open(prefix), documents), "a dataset that was put together again reads as before")


def _check_full_disk(backend: DataBackend, prefix: Path) -> None:
    """With no more space for a file than half of what the largest one of the same documents needs."""
    documents, whole = _documents(1000), prefix.parent.with_name("whole") / prefix.name
    _write(backend, whole, documents, 1000)
    space = max(file.stat().st_size for file in backend.files(whole)) // 2
    writer = backend.create(prefix, 1000)
    with _space_for_a_file(space):
        found = _raised_by(partial(_fill, writer, documents))
    _judge(found, "add_document() or close() raises DataError for a full disk")
    hold(not backend.recognises(prefix), "nothing that looks finished is left where the disk is full")
    writer.abort()
    left = _files_in(prefix.parent)
    hold(not left, f"abort() removes the files written so far, after an error too; left are {left}")


@contextmanager
def _space_for_a_file(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes: writing fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def _documents(vocab_size: int) -> Documents:
    """Documents of 0 to 1000 ids, which include the smallest and the largest id."""
    import numpy as np

    rng = np.random.RandomState(vocab_size % 1000)
    documents = [rng.randint(0, vocab_size, size=length).astype(np.int64) for length in (7, 1, 1000, 64, 0, 13)]
    for document in documents:
        document[-1:] = vocab_size - 1
    documents[2][:2] = 0, vocab_size - 1
    return documents


def _write(backend: DataBackend, prefix: Path, documents: Documents, vocab_size: int) -> None:
    _fill(backend.create(prefix, vocab_size), documents)


def _fill(writer: TokenWriter, documents: Documents) -> None:
    for index, document in enumerate(documents):
        writer.add_document(document.tolist() if index % 2 else document)  # the contract takes lists and arrays
    writer.close()


def _holds(backend: DataBackend, prefix: Path, documents: Documents) -> bool:
    """Whether there is a dataset of these documents."""
    try:
        return _same(backend.open(prefix), documents)
    except DataError:
        return False


def _same(source: TokenSource, documents: Documents) -> bool:
    return len(source.sizes) == len(documents) and all(
        list(source.read(index)) == list(document) for index, document in enumerate(documents)
    )


def _hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _require_error(call: Callable[[], object], clause: str, named: Path | None = None) -> None:
    _judge(_raised_by(call), clause, named)


def _raised_by(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 a component may raise anything
        return error
    return None


def _judge(error: Exception | None, clause: str, named: Path | None = None) -> None:
    """Raise AssertionError with the clause unless the error is a DataError, which names the file."""
    if not isinstance(error, DataError):
        raise AssertionError(clause if error is None else f"{clause}, not {error!r}") from error
    names = f" that names {named.name}" if named else ""
    hold(named is None or named.name in str(error), f"{clause}{names}: {error}")
