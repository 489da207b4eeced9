"""Text to datasets of tokens: the work of `neox data prepare`, in a process of its own.

Memory: a few batches of documents and their tokens, whatever the size of the corpus. The vocabulary and the datasets
are made under hidden names and put in place at the end, so a run that is killed leaves nothing that looks finished. Now
and then it notes how far it has come, for `--resume` to continue from there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import NOTHING, Factory, asdict, fields, frozen
from rich.filesize import decimal

from neox_core.data.records import (
    MANIFEST,
    digest_of,
    edge_hash_of,
    hashes_of,
    read_json,
    vocabulary_of,
)
from neox_core.data.tokenizer import load_tokenizer
from neox_core.errors import DataError, run_main
from neox_core.hooks.component import load_path
from neox_core.plan.runfile import ComponentRef
from neox_core.terminal import echo, echo_json
from neox_data.corpus import fingerprint, num_bytes, text_files
from neox_data.manifest import copy_file, forget_files, write_json
from neox_data.vocabulary import TRAINED, open_corpus, train_vocabulary
from neox_data.write_tokens import Journal, Written, write_tokens

if TYPE_CHECKING:
    from neox_core.contracts import DataBackend, Tokenizer, TokenSource
    from neox_data.contracts import Corpus


@frozen
class Request:
    """What `neox data prepare` was asked for.

    sources: files, patterns and folders; none of them where there is a `corpus`, which has a name.
    train: vocab_size ids are learnt from the text where the tokenizer can be; else it comes with its settings.
    sized: a size of the vocabulary was asked for. named: the dataset has a name of its own, and shares its folder.
    json_keys: each becomes a dataset; none stand for "text". sync_mb: text between two notes of how far it has come.
    sentences: the language by whose rules documents are split; None: they stay whole.
    """

    sources: tuple[str, ...]
    out: str
    name: str
    backend: ComponentRef
    tokenizer: ComponentRef
    train: bool
    vocab_size: int
    append_eod: bool
    json_keys: tuple[str, ...]
    force: bool
    corpus: ComponentRef | None = None
    workers: int = 1
    ftfy: bool = False
    skip_bad: bool = False
    resume: bool = False
    sync_mb: int = 64
    sized: bool = False
    named: bool = False
    sentences: str | None = None
    as_json: bool = False

    @property
    def prefixes(self) -> tuple[Path, ...]:
        """Of one dataset, or of one for each of several keys, with the names that GPT-NeoX gives them."""
        if len(self.json_keys) < 2:
            return (Path(self.out) / self.name,)
        return tuple(Path(self.out) / f"{self.name}_{key}_document" for key in self.json_keys)


@frozen
class Prepared:
    """The finished datasets in the manifest. `digest`: of all that they were made from.

    sha256: of their files, by name, for `neox data verify`. edges: of their files' ends, for every run that reads them.
    vocabulary: what `vocabulary_of` says of the tokenizer, for `neox data merge`.
    """

    digest: str
    written: Written
    text_bytes: int
    vocab_size: int
    sha256: dict[str, str]
    edges: dict[str, str] = Factory(dict)
    vocabulary: str = ""


def prepare(request: Request) -> None:
    """Make the datasets, unless they are there and made from the same; say what to put into a config."""
    out = Path(request.out)
    corpus = _corpus(request, out)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer_ref, trained = request.tokenizer, dict[str, str]()
    if request.train and _can_learn(request):
        tokenizer_ref, trained = train_vocabulary(
            corpus, request.tokenizer, request.vocab_size, out / TRAINED, anew=request.force
        )
    tokenizer = load_tokenizer(tokenizer_ref)
    backend: DataBackend = request.backend.make()

    how: tuple[Any, ...] = (request.name, request.append_eod, request.ftfy)
    how += () if request.sentences is None else (request.sentences,)
    digest = digest_of(fingerprint(corpus), tokenizer_ref, request.backend, *how)
    publish = {Path(file): out / Path(file).name for file in trained.values()}
    done = None if request.force else _finished(out, digest, backend, request.prefixes)
    new = not (done and all(_same(made, place) for made, place in publish.items()))
    if not new and not request.as_json:
        echo(f"{out}: is up to date (--force makes it again)")
    if new or done is None:
        done = _write(request, corpus, tokenizer_ref, tokenizer, backend, digest, publish)
    places = {str(made): str(place) for made, place in publish.items()}
    settings = tokenizer_ref.settings
    published = {key: places.get(value, value) for key, value in settings.items() if isinstance(value, str)}
    config = _keys(request, settings | published)
    if request.as_json:
        echo_json(_as_object(request, done, config, new=new))
    else:
        _report(request, done, config)


def _can_learn(request: Request) -> bool:
    """Whether the tokenizer is to be learnt. Raises DataError where it neither can be nor has the settings it needs."""
    reference = request.tokenizer
    if hasattr(load_path(reference.target), "train"):
        if request.named:
            raise DataError(
                f"a vocabulary of {reference.name} would be learnt, beside other datasets in {request.out}",
                hint="give its files, or leave out --name",
            )
        return True
    required = [each.name for each in fields(load_path(reference.settings_class or "")) if each.default is NOTHING]
    lacking = [name for name in required if name not in reference.settings]
    if lacking:
        hint = f"give --set {lacking[0]}=..."
        raise DataError(f"{reference.owner} needs {', '.join(lacking)}, and cannot be learnt from text", hint=hint)
    if request.sized:
        raise DataError(
            f"--vocab-size is for learning a vocabulary, and {reference.name} has its own", hint="leave it out"
        )
    return False


def _corpus(request: Request, out: Path) -> Corpus:
    if request.corpus is None:
        return text_files(request.sources, request.json_keys, skip_bad=request.skip_bad)
    return open_corpus(request.corpus, out)


def _write(
    request: Request,
    corpus: Corpus,
    tokenizer_ref: ComponentRef,
    tokenizer: Tokenizer,
    backend: DataBackend,
    digest: str,
    publish: dict[Path, Path],
) -> Prepared:
    """Write the datasets; `publish`: files that have to appear with them, from where to where."""
    out = Path(request.out)
    journal = Journal(_journal(out, request.name), digest, request.sync_mb * 1_000_000)
    files = [file for prefix in request.prefixes for file in backend.files(prefix)]

    def before_closing() -> None:
        forget_files(files)
        for old in reversed(files):
            old.unlink(missing_ok=True)  # never the old datasets beside the new vocabulary
        for made, place in publish.items():
            copy_file(made, place)

    written = write_tokens(
        corpus,
        tokenizer_ref,
        tokenizer,
        backend,
        request.prefixes,
        journal,
        append_eod=request.append_eod,
        workers=request.workers,
        ftfy=request.ftfy,
        sentences=request.sentences,
        resume=request.resume,
        before_closing=before_closing,
    )
    hashes = hashes_of(Path(), {file.name: str(file) for file in files})
    edges = {file.name: edge_hash_of(file) for file in files}
    done = Prepared(
        digest, written, num_bytes(corpus), tokenizer.vocab_size, hashes, edges, vocabulary_of(tokenizer_ref)
    )
    _note(out / MANIFEST, done)
    journal.remove()
    return done


def _journal(out: Path, name: str) -> Path:
    return out / f".{name}.preparing.json"


def _note(manifest: Path, done: Prepared) -> None:
    """What was made, besides the other datasets that the manifest in its folder lists."""
    before = read_json(manifest)
    others = {key: before.get(key) or {} for key in ("sha256", "edges")}
    alone = not others["sha256"].keys() - done.sha256.keys()
    same = alone or before.get("vocabulary") == done.vocabulary
    merged = {key: {**others[key], **getattr(done, key)} for key in others}
    write_json(manifest, {**asdict(done), **merged, "vocabulary": done.vocabulary if same else ""})


def _finished(out: Path, digest: str, backend: DataBackend, prefixes: tuple[Path, ...]) -> Prepared | None:
    record = read_json(out / MANIFEST)
    if record.get("digest") != digest or not all(backend.recognises(prefix) for prefix in prefixes):
        return None
    try:
        done = Prepared(**{**record, "written": Written(**record["written"])})
        counts = [_documents(backend.open(prefix)) for prefix in prefixes]
        return done if counts == list(done.written.documents) else None
    except (DataError, TypeError, KeyError):
        return None


def _documents(source: TokenSource) -> int:
    """Documents of a dataset, whose sentences may be apart in it."""
    bounds = getattr(source, "bounds", None)
    return len(source.sizes) if bounds is None else len(bounds) - 1


def _keys(request: Request, tokenizer_settings: dict[str, Any]) -> dict[str, Any]:
    """What a config says of the datasets."""
    settings = request.backend.settings | tokenizer_settings
    return {
        "data-path": str(request.prefixes[0]),
        "data-impl": request.backend.name,
        "tokenizer-type": request.tokenizer.name,
        **{field.replace("_", "-"): str(each) if isinstance(each, Path) else each for field, each in settings.items()},
    }


def _as_object(request: Request, done: Prepared, config: dict[str, Any], *, new: bool) -> dict[str, Any]:
    written = done.written
    counts = zip(request.prefixes, written.documents, written.tokens, strict=True)
    return {
        "datasets": [{"prefix": str(prefix), "documents": count, "tokens": each} for prefix, count, each in counts],
        "new": new,
        "text_bytes": done.text_bytes,
        "vocab_size": done.vocab_size,
        "left_out": {name: getattr(written, name) for name in ("undecodable", "empty", "bad", "first_bad")},
        "config": config,
    }


def _report(request: Request, done: Prepared, config: dict[str, Any]) -> None:
    written = done.written
    for prefix, documents, tokens in zip(request.prefixes, written.documents, written.tokens, strict=True):
        echo(
            f"{prefix}: {documents:,} documents, {tokens:,} tokens "
            f"from {decimal(done.text_bytes)} of text ({done.text_bytes / tokens:.2f} bytes a token), "
            f"a vocabulary of {done.vocab_size}"
        )
    if written.undecodable:
        echo(f"left out: {written.undecodable} files that are not UTF-8")
    if written.empty:
        echo(f"left out: {written.empty} empty documents")
    if written.bad:
        echo(f"left out: {written.bad} broken records, the first: {written.first_bad}")
    echo("\nput this into the config:\n")
    for key, value in config.items():
        echo(f"{key}: {value if isinstance(value, str) else json.dumps(value)}")


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()


def main() -> int:
    """`python -m neox_data.prepare JSON`: the fields of a Request."""
    raw = json.loads(sys.argv[1])
    raw["sources"] = tuple(raw["sources"])
    raw["json_keys"] = tuple(raw["json_keys"])
    raw["backend"], raw["tokenizer"] = ComponentRef(**raw["backend"]), ComponentRef(**raw["tokenizer"])
    raw["corpus"] = ComponentRef(**raw["corpus"]) if raw.get("corpus") else None
    try:
        prepare(Request(**raw))
    except KeyboardInterrupt:
        noted = _journal(Path(raw["out"]), raw["name"]).exists()
        way_on = "--resume continues" if noted else "the same command starts over"
        echo(f"interrupted: {raw['out']}: no dataset was finished; {way_on}", err=True)
        return 130
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(f"{error.filename or raw['out']}: {error.strerror or error}") from error
    return 0


if __name__ == "__main__":
    run_main(main)
