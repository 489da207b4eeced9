"""The check of a corpus: its files, made once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from neox_author.testing.clauses import clauses, has, hold, not_applicable
from neox_author.testing.plugins import build

from neox_core.errors import DataError
from neox_data.contracts import Corpus

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog


@clauses
def check_corpus(catalog: Catalog, name: str, **settings: Any) -> None:
    """Raises AssertionError with the clause of `neox_data.api.NamedCorpus` that does not hold.

    It has no network: for a corpus that asks for one, nothing is applicable.
    """
    entry = catalog.find("corpus", name)
    target, built = entry.load(), build(entry, **settings)
    made = target(built)
    has(made, "a corpus", "open")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "not", "there")
        try:
            with _no_network() as asked:
                first = made.open(folder)
        except DataError as error:
            if not asked:
                raise AssertionError(f"open() gives the files of the corpus; {error.message}") from error
            not_applicable("open() gives files that are there", "it downloads them, and the check has no network")
            return
        hold(isinstance(first, Corpus), f"open() gives a neox_data.api.Corpus, not a {type(first).__name__}")
        hold(bool(first.files) and all(each.is_file() for each in first.files), "open() gives files that are there")
        inside = [each for each in first.files if not each.resolve().is_relative_to(first.root.resolve())]
        hold(not inside, f"`root` is the folder that the files are in; {inside[:1]} is not")
        times = [each.stat().st_mtime_ns for each in first.files]
        again = target(built).open(folder)
        hold(again.files == first.files, "open() gives the same files in the same order")
        kept = [each.stat().st_mtime_ns for each in again.files] == times
        hold(kept, "what open() has made stays: a second call makes nothing again")


@contextmanager
def _no_network() -> Iterator[list[str]]:
    """Refuse to look up names of hosts. Gives what was asked for."""
    asked: list[str] = []

    def refuse(host: Any, *args: Any, **named: Any) -> Any:
        asked.append(str(host))
        raise OSError("there is no network here")

    with mock.patch("socket.getaddrinfo", refuse):
        yield asked
