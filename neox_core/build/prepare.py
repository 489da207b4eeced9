"""Text to a dataset of tokens: the work of `neox data prepare`, in a process of its own.

Memory: one batch of documents and their tokens, whatever the size of the corpus. The vocabulary and the dataset are
made under hidden names and put in place at the end, so a run that is killed leaves nothing that looks finished.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve, frozen

from neox_core.build.corpus import Corpus, Tally, batches, standard_library, text_files
from neox_core.build.progress import progress
from neox_core.errors import DataError, run_main
from neox_core.hooks.component import load_path
from neox_core.plan.runfile import ComponentRef

if TYPE_CHECKING:
    from neox_core.contracts import DataBackend, Tokenizer

BATCH_BYTES = 4 << 20
SAMPLE_BYTES_PER_TOKEN = 1024
MANIFEST = "prepared.json"
TRAINED = ".trained"


@frozen
class Request:
    """What `neox data prepare` was asked for.

    sources: files and folders; None for Python's standard library.
    train: vocab_size ids are learnt from the text; else the tokenizer comes with its settings.
    """

    sources: tuple[str, ...] | None
    out: str
    name: str
    backend: ComponentRef
    tokenizer: ComponentRef
    train: bool
    vocab_size: int
    append_eod: bool
    json_key: str | None
    force: bool

    @property
    def prefix(self) -> Path:
        return Path(self.out) / self.name


@frozen
class Prepared:
    """What the manifest says of a finished dataset. `digest`: of all that the dataset was made from."""

    digest: str
    documents: int
    tokens: int
    text_bytes: int
    vocab_size: int
    undecodable: int
    empty: int


def prepare(request: Request) -> None:
    """Make the dataset, unless it is there and made from the same; say what to put into a config."""
    out = Path(request.out)
    corpus = standard_library() if request.sources is None else text_files(request.sources, request.json_key)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer_ref, trained = _train(request, corpus) if request.train else (request.tokenizer, {})
    target, settings = tokenizer_ref.load()
    tokenizer: Tokenizer = target(settings)
    backend_target, backend_settings = request.backend.load()
    backend: DataBackend = backend_target(backend_settings)

    digest = _digest(corpus.fingerprint(), tokenizer_ref, request.backend, request.name, request.append_eod)
    publish = {Path(file): out / Path(file).name for file in trained.values()}
    done = None if request.force else _finished(out, digest, backend, request.prefix)
    if done and all(_same(made, place) for made, place in publish.items()):
        _say(f"{request.prefix}: is up to date (--force makes it again)")
    else:
        done = _write(request, corpus, tokenizer, backend, digest, publish)
    _report(request, done, {field: publish.get(Path(file), file) for field, file in tokenizer_ref.settings.items()})


def _train(request: Request, corpus: Corpus) -> tuple[ComponentRef, dict[str, str]]:
    """The tokenizer learnt from the first documents, and its files by settings field; an equal training is reused."""
    folder = Path(request.out) / TRAINED
    digest = _digest(corpus.fingerprint(), request.tokenizer, request.vocab_size, SAMPLE_BYTES_PER_TOKEN)
    record = {} if request.force else _read_json(folder / MANIFEST)
    if record.get("digest") != digest or record.get("sha256") != _hashes(folder, record.get("files", {})):
        target = load_path(request.tokenizer.target)
        if not hasattr(target, "train"):
            hint = "give its files by --vocab-file"
            raise DataError(f"{request.tokenizer.name} cannot be learnt from text", hint=hint)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        limit = min(request.vocab_size * SAMPLE_BYTES_PER_TOKEN, corpus.num_bytes)
        with progress(f"learning a vocabulary of {request.vocab_size}", limit) as advance:
            files = target.train(_sample(corpus, limit, advance), request.vocab_size, folder)
        record = {"digest": digest, "files": files, "sha256": _hashes(folder, files)}
        _write_json(folder / MANIFEST, record)
    paths = {field: str(folder / name) for field, name in record["files"].items()}
    return evolve(request.tokenizer, settings={**request.tokenizer.settings, **paths}), paths


def _sample(corpus: Corpus, limit: int, advance: Any) -> Iterator[str]:
    for document in corpus.documents(Tally()):
        yield document.text[:limit]
        advance(min(document.bytes_read, limit))
        limit -= document.bytes_read
        if limit <= 0:
            return


def _write(
    request: Request, corpus: Corpus, tokenizer: Tokenizer, backend: DataBackend, digest: str, publish: dict[Path, Path]
) -> Prepared:
    """Write the dataset; `publish`: files that have to appear with it, from where to where."""
    tally = Tally()
    documents = tokens = 0
    ending = [tokenizer.eod] if request.append_eod else []
    writer = backend.create(request.prefix, tokenizer.vocab_size)
    try:
        total = corpus.num_bytes
        with progress("writing tokens", total) as advance:
            for batch in batches(corpus.documents(tally), BATCH_BYTES):
                for ids in tokenizer.encode_batch([document.text for document in batch if document.text]):
                    writer.add_document(ids + ending)
                    documents += 1
                    tokens += len(ids) + len(ending)
                advance(sum(document.bytes_read for document in batch))
        if not documents:
            raise DataError("there is no text in what was read, so there is no dataset to write")
        for old in (Path(request.out) / MANIFEST, *reversed(backend.files(request.prefix))):
            old.unlink(missing_ok=True)  # never the old dataset beside the new vocabulary
        for made, place in publish.items():
            _copy(made, place)
        writer.close()
    except BaseException:  # Ctrl-C as well
        writer.abort()
        raise
    done = Prepared(digest, documents, tokens, total, tokenizer.vocab_size, tally.undecodable, tally.empty)
    _write_json(Path(request.out) / MANIFEST, asdict(done))
    return done


def _finished(out: Path, digest: str, backend: DataBackend, prefix: Path) -> Prepared | None:
    record = _read_json(out / MANIFEST)
    if record.get("digest") != digest or not backend.recognises(prefix):
        return None
    try:
        done = Prepared(**record)
        return done if len(backend.open(prefix).sizes) == done.documents else None
    except (DataError, TypeError):
        return None


def _report(request: Request, done: Prepared, tokenizer_settings: dict[str, Any]) -> None:
    _say(
        f"{request.prefix}: {done.documents:,} documents, {done.tokens:,} tokens "
        f"from {done.text_bytes / 1e6:.1f} MB of text ({done.text_bytes / done.tokens:.2f} bytes a token), "
        f"a vocabulary of {done.vocab_size}"
    )
    if done.undecodable:
        _say(f"left out: {done.undecodable} files that are not UTF-8")
    if done.empty:
        _say(f"left out: {done.empty} empty documents")
    _say("\nput this into the config:\n")
    lines = {
        "data-path": str(request.prefix),
        "data-impl": request.backend.name,
        "tokenizer-type": request.tokenizer.name,
        **{field.replace("_", "-"): value for field, value in tokenizer_settings.items()},
    }
    for key, value in lines.items():
        _say(f"{key}: {value}")


def _digest(*parts: Any) -> str:
    known = hashlib.sha256()
    for part in parts:
        if isinstance(part, ComponentRef):
            files = {field: value for field, value in part.settings.items() if Path(str(value)).is_file()}
            known.update(f"{part.plugin} {part.version} {part.target}".encode())
            known.update(json.dumps(_hashes(Path(), files), sort_keys=True).encode())
            rest = {field: value for field, value in part.settings.items() if field not in files}
            known.update(json.dumps(rest, sort_keys=True).encode())
        else:
            known.update(json.dumps(part).encode())
        known.update(b"\0")
    return known.hexdigest()


def _hashes(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """SHA-256 by field; "" for a file that is not there."""
    paths = {field: folder / name for field, name in files.items()}
    return {
        field: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "" for field, path in paths.items()
    }


def _read_json(path: Path) -> dict[str, Any]:
    """Empty when there is no such file, or not one of ours."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _write_json(path: Path, record: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()


def _copy(source: Path, place: Path) -> None:
    temporary = place.with_name(f".{place.name}.{os.getpid()}")
    shutil.copyfile(source, temporary)
    temporary.replace(place)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def main() -> None:
    """`python -m neox_core.build.prepare JSON`: the fields of a Request."""
    raw = json.loads(sys.argv[1])
    raw["sources"] = None if raw["sources"] is None else tuple(raw["sources"])
    raw["backend"], raw["tokenizer"] = ComponentRef(**raw["backend"]), ComponentRef(**raw["tokenizer"])
    prepare(Request(**raw))


if __name__ == "__main__":
    run_main(main)
