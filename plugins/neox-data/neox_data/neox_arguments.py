"""The command lines of GPT-NeoX's tools/datasets/preprocess_data.py, read as `neox data prepare`."""

from __future__ import annotations

import os.path
import shlex
from collections.abc import Collection, Iterator, Sequence

import click
from attrs import frozen

from neox_core.api import Problem
from neox_core.errors import UsageError

READ = {  # how many values follow: None is all up to the next option
    "--input": 1,
    "--jsonl-keys": None,
    "--num-docs": 1,
    "--tokenizer-type": 1,
    "--vocab-file": 1,
    "--merge-file": 1,
    "--append-eod": 0,
    "--ftfy": 0,
    "--output-prefix": 1,
    "--dataset-impl": 1,
    "--workers": 1,
    "--log-interval": 1,
}
"""GPT-NeoX's arguments, in its order. Its parser also takes their beginnings, such as --vocab."""

_CHAT = "datasets of chats are not in this version", "write each conversation as one text of a .jsonl file"
REFUSED = {
    "--mask-before-token": ("datasets of labels are not in this version", "leave it out: the loss is taken everywhere"),
    "--no-mask": _CHAT,
    "--generation-role": _CHAT,
    "--only-last": _CHAT,
    "--tokenizer-path": (
        "names a folder",
        "write --tokenizer-type HFTokenizer --vocab-file FOLDER/tokenizer.json",
    ),
}
"""Of GPT-NeoX's other two scripts: what is wrong, and what to write instead."""


@frozen
class Translated:
    """args: in the words of `neox data prepare`. notes: what was made of GPT-NeoX's."""

    args: tuple[str, ...]
    notes: tuple[Problem, ...] = ()


class ReadsNeoxArguments(click.Command):
    """A command that also takes GPT-NeoX's arguments, and notes what they were read as."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's, of the arguments that GPT-NeoX's stand for."""
        from neox_core.cli.notes import say

        own = {name for each in self.get_params(ctx) for name in (*each.opts, *each.secondary_opts)}
        translated = translate(args, own)
        say(translated.notes)
        return super().parse_args(ctx, list(translated.args))


def translate(args: Sequence[str], own: Collection[str]) -> Translated:
    """`args` as they are, unless one of GPT-NeoX's own is among them. own: the options of `neox data prepare`.

    Raises UsageError for what cannot be translated.
    """
    given = list(_split(args, own))
    for name, _ in given:
        if name in REFUSED and name not in own:
            fault, hint = REFUSED[name]
            raise UsageError(f"{name} of GPT-NeoX: {fault}", hint=hint)
    if all(name is None or name in own for name, _ in given):
        return Translated(tuple(args))
    notes = [Problem(_UNUSED[name], name, severity="note") for name, _ in given if name in _UNUSED]
    told = {name for name, _ in given}
    read = [word for name, values in given for word in _translated(name, values)]
    if "--output-prefix" in told and not told & {"--append-eod", "--no-append-eod"}:
        read.append("--no-append-eod")
        notes.append(Problem("is not given: no token ends a document, as in GPT-NeoX", "--append-eod", severity="note"))
    if "--output-prefix" in told:
        read += ["--name", _name(given)]
    line = Problem(f"GPT-NeoX's arguments are read as: neox data prepare {shlex.join(read)}", severity="note")
    return Translated(tuple(read), (line, *notes))


_UNUSED = {
    "--num-docs": "is not needed: the progress bar counts bytes",
    "--log-interval": "is not needed: progress is shown by the clock",
}


def _split(args: Sequence[str], own: Collection[str]) -> Iterator[tuple[str | None, list[str]]]:
    """(option, its values), with None for what belongs to none; options that are not GPT-NeoX's own have no values."""
    left = list(args)
    while left:
        word = left.pop(0)
        head, equals, value = word.partition("=")
        name = _known(head, own)
        if name is None or (name in own and name not in READ):
            yield (head if word.startswith("-") else None), [word]
        elif name in REFUSED:
            yield name, []
        else:
            values = [value] if equals else []
            wanted = READ[name]
            while (
                left and (wanted is None or len(values) < wanted) and not (wanted is None and left[0].startswith("-"))
            ):
                values.append(left.pop(0))
            if wanted != 0 and not values:
                raise UsageError(f"{name} needs a value", hint="`neox data prepare --help` lists all options")
            yield name, values


def _known(head: str, own: Collection[str]) -> str | None:
    """The option that `head` is, or is the beginning of, as GPT-NeoX's parser reads it; None for no option."""
    if head in own or head in READ or head in REFUSED:
        return head
    near = [name for name in READ if name.startswith(head)] if head.startswith("--") and len(head) > 2 else []
    return near[0] if len(near) == 1 else None


def _translated(name: str | None, values: list[str]) -> list[str]:
    match name:
        case "--input":
            files = [file for file in values[0].split(",") if file]
            return [file if {"/", "."} & set(file) else f"./{file}" for file in files]  # never the name of a corpus
        case "--jsonl-keys":
            return [] if values == ["text"] else ["--json-keys", ",".join(values)]  # which is the default
        case "--output-prefix":
            return ["--out", os.path.dirname(values[0]) or "."]  # noqa: PTH120  keeps the text as it is
        case "--dataset-impl":
            return ["--data-impl", values[0]]
        case _ if name in _UNUSED:
            return []
        case _ if name in READ:
            return [name, *values]
        case _:
            return values


def _name(given: Sequence[tuple[str | None, list[str]]]) -> str:
    """Of the dataset, as GPT-NeoX names it: PREFIX_KEY_document; that of several keys says so by itself."""
    last = dict(given)
    name = os.path.basename(last["--output-prefix"][0])  # noqa: PTH119
    keys = last.get("--jsonl-keys", ["text"])
    return name if len(keys) > 1 else f"{name}_{keys[0]}_document"
