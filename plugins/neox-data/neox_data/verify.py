"""Whether a dataset is whole: the work of `neox data verify`, in a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from attrs import asdict, frozen

from neox_core.data.records import MANIFEST, read_json, sha256_of
from neox_core.data.tokenizer import load_tokenizer
from neox_core.errors import DataError, run_main
from neox_core.plan.runfile import ComponentRef
from neox_core.terminal import echo, echo_json
from neox_data.progress import progress

if TYPE_CHECKING:
    from neox_core.contracts import DataBackend, TokenSource


@frozen
class Whole:
    """What a whole dataset has. vocab_size: every id is below it; None: not asked. checksums: of these files, as they
    were written.
    """

    prefix: str
    documents: int
    tokens: int
    highest_id: int
    empty_documents: int
    vocab_size: int | None
    checksums: tuple[str, ...]

    def in_words(self) -> str:
        below = f", all below {self.vocab_size}" if self.vocab_size is not None else ""
        sums = (
            f"{', '.join(self.checksums)} as written"
            if self.checksums
            else f"none, since {MANIFEST} has none of these files"
        )
        return "\n".join(
            [
                f"{self.prefix}: {self.documents:,} documents, {self.tokens:,} tokens: whole",
                f"ids: 0 to {self.highest_id}{below}; {self.empty_documents:,} documents are empty",
                f"checksums: {sums}",
            ]
        )


def verify(prefix: Path, backend: ComponentRef, tokenizer: ComponentRef | None, vocab_size: int | None) -> Whole:
    """What was found right. Raises DataError with what is not: structure, ranges or checksums.

    vocab_size: ids have to be below it; where a tokenizer is given, below its own.
    """
    reader: DataBackend = backend.make()
    source = reader.open(prefix)
    if tokenizer is not None:
        vocab_size = load_tokenizer(tokenizer).vocab_size
    highest, empty = _check_ids(prefix, source, vocab_size)
    checksums = _check_sums(prefix, reader.files(prefix))
    tokens = int(source.sizes.sum(dtype=np.int64))
    return Whole(str(prefix), len(source.sizes), tokens, highest, empty, vocab_size, checksums)


def _check_ids(prefix: Path, source: TokenSource, vocab_size: int | None) -> tuple[int, int]:
    """(the highest id, documents without any)."""
    highest, empty = 0, 0
    with progress("reading", int(source.sizes.sum(dtype=np.int64)) * source.dtype.itemsize) as advance:
        for document in range(len(source.sizes)):
            ids = source.read(document)
            if not len(ids):
                empty += 1
                continue
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or (vocab_size is not None and high >= vocab_size):
                wrong = low if low < 0 else high
                token = int(np.flatnonzero(ids == wrong)[0])
                size = f"a vocabulary of {vocab_size}" if vocab_size is not None else "any vocabulary"
                raise DataError(
                    f"{prefix}: document {document}, token {token}: id {wrong} is not in {size}",
                    hint="prepare the dataset again, or give the vocabulary that it was prepared with",
                )
            highest = max(highest, high)
            advance(ids.nbytes)
    return highest, empty


def _check_sums(prefix: Path, files: tuple[Path, ...]) -> tuple[str, ...]:
    """The files that are what the manifest says."""
    known = read_json(prefix.parent / MANIFEST).get("sha256", {})
    noted = [file for file in files if file.name in known]
    for file in noted:
        if sha256_of(file) != known[file.name]:
            raise DataError(
                f"{file}: is not what was written: its SHA-256 is not the one in {MANIFEST}",
                hint="copy it again, or prepare it again with --force",
            )
    return tuple(file.name for file in noted)


def main() -> None:
    """`python -m neox_data.verify JSON`: prefix, backend, tokenizer or null, vocab_size or null, as_json."""
    raw = json.loads(sys.argv[1])
    tokenizer = ComponentRef(**raw["tokenizer"]) if raw["tokenizer"] else None
    whole = verify(Path(raw["prefix"]), ComponentRef(**raw["backend"]), tokenizer, raw["vocab_size"])
    if raw["as_json"]:
        echo_json(asdict(whole))
    else:
        echo(whole.in_words())


if __name__ == "__main__":
    run_main(main)
