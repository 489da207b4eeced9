"""`check_data_backend` on a small backend that keeps the contract, and on the same with one fault at a time."""

import json
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import numpy as np
import pluggy
import pytest
from neox_author.testing import check_data_backend

from neox_core.errors import DataError
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.component import Component
from neox_core.hooks.registry import Entry, PluginInfo, Registry


class Source:
    def __init__(self, file: Path) -> None:
        try:
            record = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise DataError(f"{file}: {error}") from error
        self.dtype = np.dtype(record["dtype"])
        self.documents = [np.array(document, dtype=self.dtype) for document in record["documents"]]
        self.sizes = np.array([len(document) for document in self.documents], dtype=np.int32)

    def read(self, document, offset=0, length=None):
        end = None if length is None else offset + length
        return self.documents[document][offset:end].copy()


class Writer:
    def __init__(self, file: Path, vocab_size: int, dtype: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self.file, self.vocab_size, self.dtype, self.documents = file, vocab_size, dtype, []
        self.partial = file.with_suffix(".partial")
        self.partial.touch()

    def add_document(self, tokens):
        if any(not 0 <= token < self.vocab_size for token in tokens):
            raise DataError("a foreign id")
        self.documents.append(np.array(tokens, dtype=np.int64).astype(self.dtype).tolist())

    def close(self):
        try:
            self.write()
        except OSError as error:
            raise DataError(f"{self.partial}: {error}") from error
        self.partial.replace(self.file)

    def write(self):
        self.partial.write_text(json.dumps({"dtype": self.dtype, "documents": self.documents}))

    def abort(self):
        self.partial.unlink()


class Backend:
    source, writer = Source, Writer

    def __init__(self, settings) -> None:
        assert settings is None

    def files(self, prefix):
        return (prefix.with_name(prefix.name + ".json"),)

    def recognises(self, prefix):
        return self.files(prefix)[0].is_file()

    def open(self, prefix):
        return self.source(self.files(prefix)[0])

    def create(self, prefix, vocab_size):
        return self.writer(self.files(prefix)[0], vocab_size, "uint16" if vocab_size <= 65536 else "int32")


def check(backend: type, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("neox_mutants")
    module.target = backend
    monkeypatch.setitem(sys.modules, "neox_mutants", module)
    registry = Registry()
    component = Component("checked", "neox_mutants:target")
    registry.add(Entry("data backend", component, PluginInfo("neox-mutants", "0.1.0", "neox_mutants")))
    check_data_backend(Catalog(pluggy.PluginManager("neox"), registry, ()), "checked")


def with_source(**members) -> type:
    return type("Faulty", (Backend,), {"source": type("FaultySource", (Source,), members)})


def with_writer(**members) -> type:
    return type("Faulty", (Backend,), {"writer": type("FaultyWriter", (Writer,), members)})


def shifted(self, document, offset=0, length=None):
    return Source.read(self, document, offset + (offset > 0), length)


def ignores_length(self, document, offset=0, length=None):
    return Source.read(self, document, offset)


def hands_out_its_own(self, document, offset=0, length=None):
    return self.documents[document][offset : None if length is None else offset + length]


def loses_the_last(self):
    self.documents.pop()
    Writer.close(self)


def shows_early(self, tokens):
    Writer.add_document(self, tokens)
    self.file.write_text(json.dumps({"dtype": self.dtype, "documents": self.documents}))


def takes_any_id(self, tokens):
    self.documents.append(np.array(tokens, dtype=np.int64).astype(self.dtype).tolist())


def forgets_to_remove(self):
    self.documents.clear()


def removes_the_old_one(self):
    self.file.unlink(missing_ok=True)
    self.partial.unlink()


def leaves_its_partial(self):
    Writer.close(self)
    self.partial.touch()


def lets_the_error_pass(self):
    self.write()
    self.partial.replace(self.file)


def finishes_what_it_has(self):
    with suppress(OSError):
        self.write()
    self.partial.replace(self.file)


def keeps_after_an_error(self):
    if self.documents:
        self.partial.unlink()


def forgets_what_it_had(self):
    try:
        Writer.close(self)
    except DataError:
        self.documents.clear()
        raise


class AFolderForParts(Writer):
    """Nothing but files tells of a dataset: the folder stays."""

    def __init__(self, file, vocab_size, dtype):
        super().__init__(file, vocab_size, dtype)
        file.with_suffix(".parts").mkdir(exist_ok=True)


class EmptyMark(Backend):
    """A second file without content, which is there once the dataset is whole."""

    def files(self, prefix):
        return (*super().files(prefix), prefix.with_name(prefix.name + ".done"))

    def recognises(self, prefix):
        return all(file.exists() for file in self.files(prefix))

    def open(self, prefix):
        if lacks := [file for file in self.files(prefix) if not file.exists()]:
            raise DataError(f"{lacks[0]} is not there")
        return super().open(prefix)

    def create(self, prefix, vocab_size):
        writer, mark = super().create(prefix, vocab_size), self.files(prefix)[1]
        whole = writer.close
        writer.close = lambda: (whole(), mark.touch())
        return writer


class RecognisesHalf(EmptyMark):
    def recognises(self, prefix):
        return self.files(prefix)[0].exists()


def makes_room(self, *args):
    Writer.__init__(self, *args)
    self.file.unlink(missing_ok=True)


def in_a_folder_that_is_there(self, file, vocab_size, dtype):
    self.file = file.with_suffix(".partial").open("wb")


class ListsFiles(Backend):
    def files(self, prefix):
        return [*super().files(prefix)]


class WrongSizes(Source):
    def __init__(self, file):
        super().__init__(file)
        self.sizes = self.sizes - 1


class WritesAtReading(Source):
    def __init__(self, file):
        super().__init__(file)
        file.write_text(file.read_text() + " ")


class ToleratesDamage(Source):
    def __init__(self, file):
        try:
            super().__init__(file)
        except DataError:
            if not file.exists():
                raise
            self.dtype, self.documents, self.sizes = np.dtype("uint16"), [np.zeros(1)] * 9, np.ones(9)


class RaisesItsOwn(Source):
    def __init__(self, file):
        json.loads(file.read_text())
        super().__init__(file)


class NamesNoFile(Source):
    def __init__(self, file):
        try:
            super().__init__(file)
        except DataError as error:
            raise DataError("broken") from error


class TooSmall(Backend):
    def create(self, prefix, vocab_size):
        return self.writer(self.files(prefix)[0], vocab_size, "uint16")


class Signed(Backend):
    def create(self, prefix, vocab_size):
        return self.writer(self.files(prefix)[0], vocab_size, "int16" if vocab_size <= 65536 else "int32")


class AlwaysRecognises(Backend):
    def recognises(self, prefix):
        return True


class NeverRecognises(Backend):
    def recognises(self, prefix):
        return False


class NamesNoFiles(Backend):
    def files(self, prefix):
        return (prefix.with_name(prefix.name + ".json"), prefix.with_name("other"))


FAULTS = {
    "wrong offset": (with_source(read=shifted), r"read\(offset="),
    "length ignored": (with_source(read=ignores_length), "length=1"),
    "source handed out": (with_source(read=hands_out_its_own), "does not change what is read next"),
    "wrong sizes": (type("F", (Backend,), {"source": WrongSizes}), "sizes holds the tokens"),
    "last document lost": (with_writer(close=loses_the_last), "sizes holds the tokens"),
    "visible before close": (with_writer(add_document=shows_early), "looks finished exists before close|stays whole"),
    "foreign ids taken": (with_writer(add_document=takes_any_id), "add_document.* raises DataError for id -1"),
    "abort leaves files": (with_writer(abort=forgets_to_remove), "abort.* removes the files written so far; left are"),
    "abort removes the old": (with_writer(abort=removes_the_old_one), "abort.. keeps the old one"),
    "create removes the old": (with_writer(__init__=makes_room), "stays whole until close"),
    "a list of files": (ListsFiles, "files.. gives a tuple of paths, not \\["),
    "no folder is made": (
        with_writer(__init__=in_a_folder_that_is_there),
        r"raises FileNotFoundError.*test_check_data_backend, line",
    ),
    "close leaves files": (with_writer(close=leaves_its_partial), "close.* leaves no other files"),
    "another error of a full disk": (with_writer(close=lets_the_error_pass), "DataError for a full disk, not OSError"),
    "a full disk passed over": (with_writer(close=finishes_what_it_has), "raises DataError for a full disk$"),
    "files left after an error": (
        with_writer(close=forgets_what_it_had, abort=keeps_after_an_error),
        "abort.* removes the files written so far, after an error too",
    ),
    "source writes": (type("F", (Backend,), {"source": WritesAtReading}), "changes nothing on disk"),
    "damage tolerated": (type("F", (Backend,), {"source": ToleratesDamage}), "bytes are left is a DataError"),
    "another error": (
        type("F", (Backend,), {"source": RaisesItsOwn}),
        "where there is nothing.*, not FileNot",
    ),
    "file not named": (type("F", (Backend,), {"source": NamesNoFile}), "that names"),
    "dtype overflow": (TooSmall, "gives the ids that were written.*vocabulary of 65537"),
    "signed dtype": (Signed, "gives the ids that were written.*vocabulary of 32769"),
    "recognises nothing": (AlwaysRecognises, "false where there is nothing"),
    "recognises a half": (RecognisesHalf, "false where a file is missing; not without tokens.done"),
    "recognises not": (NeverRecognises, "true of a dataset that it wrote"),
    "wrong files": (NamesNoFiles, "names the files of the dataset"),
}


def test_a_backend_that_keeps_the_contract_passes(monkeypatch):
    check(Backend, monkeypatch)


def test_a_folder_that_stays_and_an_empty_file_are_no_faults(monkeypatch):
    check(type("WithParts", (Backend,), {"writer": AFolderForParts}), monkeypatch)
    check(EmptyMark, monkeypatch)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(fault, monkeypatch):
    backend, clause = FAULTS[fault]
    with pytest.raises((AssertionError, DataError), match=clause):
        check(backend, monkeypatch)
