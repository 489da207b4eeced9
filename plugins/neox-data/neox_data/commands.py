"""`neox data`: text to datasets of tokens. The work is done by a process that may import numpy and tokenizers."""

from __future__ import annotations

import re
from pathlib import Path

import click

from neox_core.cli.process import exec_module
from neox_core.errors import UsageError
from neox_core.hooks.loader import load_plugins
from neox_data.components import component, files, given_by, lacking, named_corpus, names_files
from neox_data.dataset_commands import JSON, OUT, SETTINGS, index, inspect, merge, train_tokenizer, verify
from neox_data.neox_arguments import ReadsNeoxArguments

DEFAULT_VOCAB_SIZE = 8192


@click.group()
def data() -> None:
    """Turn text into datasets of tokens."""


@data.command(cls=ReadsNeoxArguments)
@click.argument("sources", nargs=-1, required=True, type=click.Path(readable=False))
@OUT("Folder for dataset and vocabulary.")
@click.option("--name", help="Name of the dataset in it, instead of the folder's own: for several in one folder.")
@click.option("--vocab-size", type=click.IntRange(min=257), help="Tokens to learn (8192), from 1 KiB of text each.")
@click.option("--vocab-file", type=click.Path(), help="Use this vocabulary instead of learning one.")
@click.option("--merge-file", type=click.Path(), help="The merges that belong to it.")
@click.option("--eod-token", help="The token that ends a document, for a tokenizer.json that has another.")
@click.option("--tokenizer-type", default="GPT2BPETokenizer", show_default=True, help="As in a config.")
@click.option("--data-impl", default="mmap", show_default=True, help="As in a config.")
@SETTINGS
@click.option(
    "--append-eod/--no-append-eod",
    default=None,
    help="End each document with a token. Default: yes, but not with --split-sentences.",
)
@click.option(
    "--split-sentences", is_flag=True, help="Keep the sentences of documents apart, for objective: masked-lm."
)
@click.option("--lang", help="Language of the text for --split-sentences, as two letters: en if not given.")
@click.option(
    "--json-keys",
    "--json-key",
    multiple=True,
    help="Member of each line of a .jsonl file, or column of a .parquet file, with the text: `text` if not given. "
    "Several, also with commas between them, make a dataset each.",
)
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes that encode.")
@click.option("--ftfy", is_flag=True, help="Repair text that was decoded wrongly, with the library ftfy.")
@click.option("--skip-bad", is_flag=True, help="Leave out and count broken lines, instead of stopping at the first.")
@click.option("--resume", is_flag=True, help="Continue a run that was stopped.")
@click.option(
    "--sync-mb",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="MB of text between two saves of the progress, for --resume.",
)
@click.option("--force", is_flag=True, help="Make everything again, even if it is up to date.")
@JSON
def prepare(
    sources: tuple[str, ...],
    out: str,
    name: str | None,
    vocab_size: int | None,
    vocab_file: str | None,
    merge_file: str | None,
    eod_token: str | None,
    tokenizer_type: str,
    data_impl: str,
    sets: tuple[str, ...],
    append_eod: bool | None,
    split_sentences: bool,
    lang: str | None,
    json_keys: tuple[str, ...],
    workers: int,
    ftfy: bool,
    skip_bad: bool,
    resume: bool,
    sync_mb: int,
    force: bool,
    as_json: bool,
) -> None:
    """Tokenize SOURCES: .txt files (a document each), .jsonl files (a document a line), both also as .gz and .zst,
    .parquet files (a document a row), patterns such as 'a/*.jsonl', and folders of them; or the name of a corpus,
    such as `stdlib` (`neox plugins list --kind corpus`).

    Without --vocab-file a tokenizer is trained on the text. Needs no more memory for a larger corpus; a run that is
    killed leaves nothing that looks finished.

    The arguments of GPT-NeoX's preprocess_data.py are read too, and a note says what they are here.
    """
    if resume and force:
        raise UsageError("--force makes everything again, and --resume continues", hint="leave one out")
    if lang is not None and not split_sentences:
        raise UsageError("--lang is for --split-sentences", hint="leave it out")
    if lang is not None and not re.fullmatch("[a-z]{2,3}", lang):
        raise UsageError(f"--lang {lang!r} is not a language", hint="two letters, such as en or de")
    catalog = load_plugins()
    corpus = named_corpus(catalog, sources, more=bool(json_keys))
    given = given_by(sets, files(vocab_file, merge_file, eod_token))
    tokenizer = catalog.find("tokenizer", tokenizer_type)
    learnt = tokenizer.component.settings is not None and not names_files(tokenizer, given.take(tokenizer))
    if not learnt and vocab_size is not None:
        raise UsageError("--vocab-size is for learning a vocabulary, and --vocab-file gives one", hint="leave one out")
    if name is not None and (not name or "/" in name):
        raise UsageError(f"--name {name!r} is not the name of a file", hint="--out takes the folder")
    if name is not None and learnt and lacking(tokenizer, given.take(tokenizer)):
        raise UsageError(
            "--name is for a dataset that shares its folder, and a vocabulary is learnt for one dataset only",
            hint="give --vocab-file, or leave out --name",
        )
    settled = component(catalog, "tokenizer", tokenizer_type, given, complete=not learnt)
    backend = component(catalog, "data backend", data_impl, given)
    given.refuse_unread()
    exec_module(
        "neox_data.prepare",
        {
            "sources": () if corpus else sources,
            "corpus": corpus.plain() if corpus else None,
            "out": out,
            "name": name or (corpus.name if corpus else Path(out).resolve().name),
            "backend": backend.plain(),
            "tokenizer": settled.plain(),
            "train": learnt,
            "vocab_size": vocab_size or DEFAULT_VOCAB_SIZE,
            "sized": vocab_size is not None,
            "named": name is not None,
            "append_eod": not split_sentences if append_eod is None else append_eod,
            "sentences": (lang or "en") if split_sentences else None,
            "json_keys": [key for keys in json_keys for key in keys.split(",")],
            "force": force,
            "workers": workers,
            "ftfy": ftfy,
            "skip_bad": skip_bad,
            "resume": resume,
            "sync_mb": sync_mb,
            "as_json": as_json,
        },
    )


for each in (inspect, merge, verify, index, train_tokenizer):
    data.add_command(each)
