"""`neox data inspect, merge, verify, index`: what can be done with datasets that are there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from neox_core.cli.notes import say
from neox_core.cli.process import exec_module
from neox_core.errors import UsageError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run
from neox_data.components import backend_of, component, files, given_by, named_corpus

SETTINGS = click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="A setting of tokenizer or format, as in a config."
)
JSON = click.option("--json", "as_json", is_flag=True, help="A JSON object instead of lines.")
F = TypeVar("F", bound=Callable[..., Any])
GPT2 = "GPT2BPETokenizer"
MOST_TOKENS = 1 << 31
"""Of the samples that are shown: the order of all of them is in memory."""


def OUT(help: str) -> Callable[[F], F]:  # noqa: N802 - stands above commands as SETTINGS does
    """`--out`, a folder to write, new or there."""

    def checked(_: click.Context, __: click.Parameter, value: str) -> str:
        if not value or (Path(value).exists() and not Path(value).is_dir()):
            said = f"{value} is not a folder" if value else "it is empty"
            raise click.BadParameter(f"{said}; name a folder, which may be new, or . for the current one")
        return value

    return click.option("--out", required=True, type=click.Path(file_okay=False), help=help, callback=checked)


def _reading(command: F) -> F:
    """The options of a command that reads a dataset and may need its vocabulary."""
    for option in (
        click.option("--data-impl", default="infer", show_default=True, help="As in a config."),
        click.option("--tokenizer-type", help=f"As in a config; {GPT2} if a vocabulary is given."),
        click.option("--eod-token", help="The token that ends a document, for a tokenizer.json that has another."),
        click.option("--merge-file", type=click.Path(), help="The merges that belong to it."),
        click.option("--vocab-file", type=click.Path(), help="The vocabulary of the dataset."),
        SETTINGS,
    ):
        command = option(command)
    return command


@click.command()
@click.argument("prefix", type=click.Path(readable=False))
@click.option("--document", type=click.IntRange(min=0), default=0, show_default=True, help="The one to show, from 0.")
@click.option("--histogram", is_flag=True, help="Draw how long the documents are.")
@click.option("--samples", type=click.IntRange(min=0), default=0, show_default=True, help="Training samples to show.")
@click.option("--seq-length", type=click.IntRange(min=1), default=256, show_default=True, help="Tokens of a sample.")
@click.option(
    "--seed", type=click.IntRange(1, 2**32 - 1), default=1234, show_default=True, help="Of the order of the samples."
)
@JSON
@_reading
def inspect(
    prefix: str,
    document: int,
    histogram: bool,
    samples: int,
    seq_length: int,
    seed: int,
    as_json: bool,
    vocab_file: str | None,
    merge_file: str | None,
    eod_token: str | None,
    tokenizer_type: str | None,
    data_impl: str,
    sets: tuple[str, ...],
) -> None:
    """Show what is in the dataset at PREFIX, the path without .bin and .idx: its size, and how a document begins.

    With --samples also which pieces of documents training samples are made of, and what is left out of their loss.
    """
    if as_json and (histogram or samples):
        raise UsageError("--json has neither --histogram nor --samples", hint="leave out one of them")
    if samples * seq_length > MOST_TOKENS:
        said = f"{samples} samples of {seq_length} tokens are more than the {MOST_TOKENS:,} that can be shown"
        raise UsageError(said, hint="give fewer --samples, or a shorter --seq-length")
    shown = {
        "document": document,
        "histogram": histogram,
        "samples": samples,
        "seq_length": seq_length,
        "seed": seed,
    }
    arguments = _dataset(prefix, data_impl, tokenizer_type, sets, files(vocab_file, merge_file, eod_token))
    exec_module("neox_data.inspect", {**arguments, "shown": shown, "as_json": as_json})


@click.command()
@click.argument("prefix", type=click.Path(readable=False))
@click.option("--vocab-size", type=click.IntRange(min=1), help="Ids have to be below it.")
@JSON
@_reading
def verify(
    prefix: str,
    vocab_size: int | None,
    as_json: bool,
    vocab_file: str | None,
    merge_file: str | None,
    eod_token: str | None,
    tokenizer_type: str | None,
    data_impl: str,
    sets: tuple[str, ...],
) -> None:
    """Read the whole dataset at PREFIX: its structure, the range of its ids, and the checksums from its making."""
    arguments = _dataset(prefix, data_impl, tokenizer_type, sets, files(vocab_file, merge_file, eod_token))
    exec_module("neox_data.verify", {**arguments, "vocab_size": vocab_size, "as_json": as_json})


@click.command()
@click.argument("prefixes", nargs=-1, required=True, type=click.Path(readable=False))
@click.option("--out", required=True, type=click.Path(readable=False), help="Prefix of the dataset to write.")
@click.option("--data-impl", default="mmap", show_default=True, help="The format to write it in.")
@SETTINGS
@JSON
def merge(prefixes: tuple[str, ...], out: str, data_impl: str, sets: tuple[str, ...], as_json: bool) -> None:
    """Write the documents of the datasets at PREFIXES, one after the other, as one dataset."""
    catalog, given = load_plugins(), given_by(sets)
    written_as = component(catalog, "data backend", data_impl, given)
    given.refuse_unread()
    exec_module(
        "neox_data.merge",
        {
            "prefixes": prefixes,
            "backends": [backend_of(catalog, "infer", prefix).plain() for prefix in prefixes],
            "out": out,
            "written_as": written_as.plain(),
            "as_json": as_json,
        },
    )


@click.command("train-tokenizer")
@click.argument("sources", nargs=-1, required=True, type=click.Path(readable=False))
@OUT("Folder for the files of the tokenizer.")
@click.option("--vocab-size", type=click.IntRange(min=2), default=8192, show_default=True, help="Tokens to learn.")
@click.option("--tokenizer-type", default=GPT2, show_default=True, help="As in a config.")
@click.option("--json-key", help="Member of each line of a .jsonl file that holds the text, `text` if not given.")
@SETTINGS
@JSON
def train_tokenizer(
    sources: tuple[str, ...],
    out: str,
    vocab_size: int,
    tokenizer_type: str,
    json_key: str | None,
    sets: tuple[str, ...],
    as_json: bool,
) -> None:
    """Learn a tokenizer from SOURCES, which are as in `neox data prepare`; 1 KiB of text is read for each token."""
    catalog, given = load_plugins(), given_by(sets)
    tokenizer = component(catalog, "tokenizer", tokenizer_type, given, complete=False)
    given.refuse_unread()
    corpus = named_corpus(catalog, sources, more=json_key is not None)
    exec_module(
        "neox_data.vocabulary",
        {
            "sources": () if corpus else sources,
            "corpus": corpus.plain() if corpus else None,
            "out": out,
            "vocab_size": vocab_size,
            "tokenizer": tokenizer.plain(),
            "json_keys": [json_key] if json_key else [],
            "as_json": as_json,
        },
    )


@click.command()
@click.argument("config_files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a key on top of the files.")
@JSON
def index(config_files: tuple[Path, ...], sets: tuple[str, ...], as_json: bool) -> None:
    """Make the orders of samples that a run of CONFIG_FILES reads, beside its datasets, where it will find them.

    They follow from train-iters times the batch size, so where that depends on the machine, set train_batch_size.
    """
    resolved = prepare_run(config_files, sets)
    say(resolved.notes)
    exec_module("neox_data.index", {"as_json": as_json}, resolved.plan)


def _dataset(
    prefix: str, data_impl: str, tokenizer_type: str | None, sets: tuple[str, ...], of_files: dict[str, Any]
) -> dict[str, Any]:
    catalog, given = load_plugins(), given_by(sets, of_files)
    named = tokenizer_type or (GPT2 if of_files else None)
    backend = backend_of(catalog, data_impl, prefix, given)
    tokenizer = component(catalog, "tokenizer", named, given) if named else None
    given.refuse_unread()
    return {"prefix": prefix, "backend": backend.plain(), "tokenizer": tokenizer.plain() if tokenizer else None}
