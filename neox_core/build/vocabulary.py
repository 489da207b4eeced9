"""A vocabulary learnt from text, kept in a folder so that an equal training is not done twice."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import evolve

from neox_core.build.corpus import Corpus, Tally
from neox_core.build.progress import Advance, progress
from neox_core.build.records import digest_of, hashes_of, read_json, write_json
from neox_core.errors import DataError
from neox_core.hooks.component import load_path
from neox_core.plan.runfile import ComponentRef

SAMPLE_BYTES_PER_TOKEN = 1024
RECORD = "prepared.json"


def train_vocabulary(
    corpus: Corpus, tokenizer: ComponentRef, vocab_size: int, folder: Path, *, anew: bool = False
) -> tuple[ComponentRef, dict[str, str]]:
    """The tokenizer learnt from the first documents, and its files in `folder` by settings field.

    Raises DataError for a tokenizer that cannot be learnt.
    """
    digest = digest_of(corpus.fingerprint(), tokenizer, vocab_size, SAMPLE_BYTES_PER_TOKEN)
    record: dict[str, Any] = {} if anew else read_json(folder / RECORD)
    if record.get("digest") != digest or record.get("sha256") != hashes_of(folder, record.get("files", {})):
        target = load_path(tokenizer.target)
        if not hasattr(target, "train"):
            hint = "give its files by --vocab-file"
            raise DataError(f"{tokenizer.name} cannot be learnt from text", hint=hint)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        limit = min(vocab_size * SAMPLE_BYTES_PER_TOKEN, corpus.num_bytes)
        with progress(f"learning a vocabulary of {vocab_size}", limit) as advance:
            files = target.train(_sample(corpus, limit, advance), vocab_size, folder)
        record = {"digest": digest, "files": files, "sha256": hashes_of(folder, files)}
        write_json(folder / RECORD, record)
    paths = {field: str(folder / name) for field, name in record["files"].items()}
    return evolve(tokenizer, settings={**tokenizer.settings, **paths}), paths


def _sample(corpus: Corpus, limit: int, advance: Advance) -> Iterator[str]:
    for document in corpus.documents(Tally()):
        for text in document.texts:
            yield text[:limit]
        advance(min(document.bytes_read, limit))
        limit -= document.bytes_read
        if limit <= 0:
            return
