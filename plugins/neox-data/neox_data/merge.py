"""Several datasets into one: the work of `neox data merge`, in a process of its own, in constant memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neox_core.data.records import MANIFEST, read_json, require_as_prepared
from neox_core.data.sources import open_source
from neox_core.errors import DataError, run_main
from neox_core.plan.runfile import ComponentRef
from neox_core.terminal import echo, echo_json
from neox_data.manifest import forget_files, note_files
from neox_data.progress import progress

if TYPE_CHECKING:
    from neox_core.contracts import DataBackend, TokenSource

NARROW, WIDE = 65499, 2**31 - 1
"""Vocabularies that GPT-NeoX stores in two and in four bytes."""


def merge(
    prefixes: Sequence[Path], backends: Sequence[ComponentRef], out: Path, written_as: ComponentRef
) -> tuple[int, int]:
    """Write the documents of all datasets, one after the other, as one at `out`. Returns (documents, tokens).

    The result is what writing all documents at once would have made. Raises DataError for a dataset that cannot be
    read, for one that is to be written over while it is read, and for datasets of different vocabularies.
    """
    if out.resolve() in {prefix.resolve() for prefix in prefixes}:
        raise DataError(f"{out}: is one of those that are merged", hint="write to another place")
    sources, found = [], dict[str, Path]()
    for prefix, ref in zip(prefixes, backends, strict=True):
        backend = _backend(ref)
        told = require_as_prepared(backend.files(prefix))  # else the manifest beside it is of other datasets
        found[read_json(prefix.parent / MANIFEST).get("vocabulary", "") if told else ""] = prefix
        sources.append(open_source(backend, ref, prefix))
    vocabulary = _common_vocabulary(found)
    vocab_size = NARROW if all(source.dtype.itemsize <= 2 for source in sources) else WIDE
    into = _backend(written_as)
    writer: Any = into.create(out, vocab_size)
    documents = tokens = 0
    try:
        total = sum(int(source.sizes.sum(dtype=np.int64)) * source.dtype.itemsize for source in sources)
        with progress("merging", total) as advance:
            for source in sources:
                for first, last in _groups(source):
                    pieces = [source.read(document) for document in range(first, last)]
                    if last - first == 1:
                        writer.add_document(pieces[0])
                    else:
                        ids = np.concatenate([np.empty(0, source.dtype), *pieces])
                        writer.add_document(ids, [len(piece) for piece in pieces])
                    advance(sum(piece.nbytes for piece in pieces))
                    tokens += sum(map(len, pieces))
                    documents += last - first
        forget_files(into.files(out))
        writer.close()
        note_files(into.files(out), vocabulary)
    except BaseException:
        writer.abort()
        raise
    return documents, tokens


def _common_vocabulary(found: Mapping[str, Path]) -> str:
    """Of all of the datasets; "" where that of one is not known. Raises DataError where they differ.

    found: a dataset by its vocabulary.
    """
    known = [prefix for vocabulary, prefix in found.items() if vocabulary]
    if len(known) > 1:
        one, other, *_ = known
        raise DataError(
            f"{one} and {other} were prepared with different vocabularies, so their ids mean different things",
            hint="prepare one of them again with --vocab-file and --merge-file of the other",
        )
    return "" if "" in found else next(iter(found))


def _groups(source: TokenSource) -> list[tuple[int, int]] | zip[tuple[int, int]]:
    """(first, last) of the sequences that were written as one document; each alone where the format has no groups."""
    bounds = getattr(source, "bounds", None)
    if bounds is None:
        bounds = np.arange(len(source.sizes) + 1)
    return zip(map(int, bounds[:-1]), map(int, bounds[1:]), strict=True)


def _backend(reference: ComponentRef) -> DataBackend:
    backend: DataBackend = reference.make()
    return backend


def main() -> None:
    """`python -m neox_data.merge JSON`: prefixes, backends, out, written_as, as_json."""
    raw = json.loads(sys.argv[1])
    backends = [ComponentRef(**each) for each in raw["backends"]]
    prefixes, out = [Path(each) for each in raw["prefixes"]], Path(raw["out"])
    try:
        documents, tokens = merge(prefixes, backends, out, ComponentRef(**raw["written_as"]))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(f"{error.filename or out}: {error.strerror or error}") from error
    if raw["as_json"]:
        echo_json({"prefix": str(out), "documents": documents, "tokens": tokens})
    else:
        echo(f"{out}: {documents:,} documents, {tokens:,} tokens from {len(prefixes)} datasets")


if __name__ == "__main__":
    run_main(main)
