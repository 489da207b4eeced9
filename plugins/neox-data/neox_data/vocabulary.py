"""A vocabulary learnt from text, kept in a folder so that an equal training is not done twice.

Also the work of `neox data train-tokenizer`, in a process of its own.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve

from neox_core.data.records import digest_of, hashes_of, read_json
from neox_core.errors import DataError, run_main
from neox_core.hooks.component import load_path
from neox_core.plan.runfile import ComponentRef
from neox_core.terminal import echo, echo_json
from neox_data.contracts import Corpus
from neox_data.corpus import Tally, fingerprint, num_bytes, read_documents, text_files
from neox_data.manifest import copy_file, write_json
from neox_data.progress import Advance, progress

if TYPE_CHECKING:
    from neox_data.contracts import NamedCorpus

SAMPLE_BYTES_PER_TOKEN = 1024
RECORD = "prepared.json"
TRAINED = ".trained"
CORPUS = ".corpus"


def open_corpus(corpus: ComponentRef, out: Path) -> Corpus:
    """A text that has a name; what it needs is kept in the folder `out`. Raises DataError when it cannot be got."""
    named: NamedCorpus = corpus.make()
    with corpus.blamed():
        found = named.open(out / CORPUS)
    if not isinstance(found, Corpus):
        raise corpus.fault(f"open() returns a Corpus, not a {type(found).__name__}")
    return found


def train_vocabulary(
    corpus: Corpus, tokenizer: ComponentRef, vocab_size: int, folder: Path, *, anew: bool = False
) -> tuple[ComponentRef, dict[str, str]]:
    """The tokenizer learnt from the first documents, and its files by settings field in `folder`, which is its own.

    Raises DataError for a tokenizer that cannot be learnt.
    """
    digest = digest_of(fingerprint(corpus), tokenizer, vocab_size, SAMPLE_BYTES_PER_TOKEN)
    record: dict[str, Any] = {} if anew else read_json(folder / RECORD)
    if record.get("digest") != digest or record.get("sha256") != hashes_of(folder, record.get("files", {})):
        target = load_path(tokenizer.target)
        if not hasattr(target, "train"):
            hint = "give its files by --vocab-file"
            raise DataError(f"{tokenizer.name} cannot be learnt from text", hint=hint)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        limit = min(vocab_size * SAMPLE_BYTES_PER_TOKEN, num_bytes(corpus))
        with progress(f"learning a vocabulary of {vocab_size}", limit) as advance:
            files = target.train(_sample(corpus, limit, advance), vocab_size, folder)
        record = {"digest": digest, "files": files, "sha256": hashes_of(folder, files)}
        write_json(folder / RECORD, record)
    paths = {field: str(folder / name) for field, name in record["files"].items()}
    return evolve(tokenizer, settings={**tokenizer.settings, **paths}), paths


def _sample(corpus: Corpus, limit: int, advance: Advance) -> Iterator[str]:
    for document in read_documents(corpus, Tally()):
        for text in document.texts:
            yield text[:limit]
        advance(min(document.bytes_read, limit))
        limit -= document.bytes_read
        if limit <= 0:
            return


def main() -> None:
    """`python -m neox_data.vocabulary JSON`: as `neox data train-tokenizer` gives them; corpus: or null."""
    raw = json.loads(sys.argv[1])
    tokenizer, out = ComponentRef(**raw["tokenizer"]), Path(raw["out"])
    try:
        if raw["corpus"]:
            corpus = open_corpus(ComponentRef(**raw["corpus"]), out)
        else:
            corpus = text_files(raw["sources"], raw["json_keys"])
        _, trained = train_vocabulary(corpus, tokenizer, raw["vocab_size"], out / TRAINED)
        paths = {field: out / Path(path).name for field, path in trained.items()}
        for field, path in paths.items():
            copy_file(Path(trained[field]), path)
    except OSError as error:
        raise DataError(f"{out}: {error.strerror or error}") from error
    lines = {"tokenizer-type": tokenizer.name, **{field.replace("_", "-"): str(path) for field, path in paths.items()}}
    if raw["as_json"]:
        echo_json({"config": lines})
        return
    echo("put this into the config:\n\n" + "\n".join(f"{key}: {value}" for key, value in lines.items()))


if __name__ == "__main__":
    run_main(main)
