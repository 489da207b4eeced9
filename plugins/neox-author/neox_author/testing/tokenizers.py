"""The check of a tokenizer against `neox_core.contracts.Tokenizer`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_author.testing.clauses import clauses, has, hold, not_applicable
from neox_author.testing.plugins import build
from neox_core.hooks.component import load_path

if TYPE_CHECKING:
    from neox_core.contracts import Tokenizer
    from neox_core.hooks.catalog import Catalog
    from neox_core.hooks.registry import Entry

TEXTS = (
    "",
    "a",
    "one two  three\n\tfour",
    "0123456789 !?.,;:",
    "caf\u00e9 \u65e5\u672c \U0001f600",
    "def f(x):\n    return x\n",
)
VOCAB_SIZE = 300


@clauses
def check_tokenizer(catalog: Catalog, name: str, *, lossless: bool = True, **settings: Any) -> None:
    """Raises AssertionError naming the clause of `contracts.Tokenizer` that the tokenizer breaks.

    One that can be trained is trained first, with these settings, unless they are all that it needs. lossless: whether
    it gives every text back.
    """
    entry = catalog.find("tokenizer", name)
    target = entry.load()
    with tempfile.TemporaryDirectory() as folder:
        if hasattr(target, "train"):
            settings |= _trained(entry, target, Path(folder))
        else:
            not_applicable("train(): the same texts give the same files", "it cannot be trained")
        built = build(entry, **settings)
        tokenizer = target(built)
        _check_tokenizer(tokenizer, lossless)
        if entry.component.planner is None:
            not_applicable("the planner tells the number of ids", "it has no planner")
        else:
            told = load_path(entry.component.planner)(built)
            hold(
                told == tokenizer.vocab_size, f"the planner tells the number of ids: {tokenizer.vocab_size}, not {told}"
            )


def _trained(entry: Entry, target: Any, folder: Path) -> dict[str, str]:
    """The settings of a tokenizer that was trained here."""
    texts = [text * 20 for text in TEXTS]
    files, contents = [], []
    for place in (folder / "one", folder / "other"):
        place.mkdir()
        files.append(target.train(iter(texts), VOCAB_SIZE, place))
        hold(isinstance(files[-1], dict), f"train() returns file names by settings field, not {files[-1]!r}")
        missing = [name for name in files[-1].values() if not (place / name).is_file()]
        hold(not missing, f"train() names files that it wrote into the folder; {missing} are not there")
        contents.append([(place / name).read_bytes() for name in files[-1].values()])
    hold(files[0] == files[1] and contents[0] == contents[1], "train(): the same texts give the same files")
    paths = {field: str(folder / "one" / name) for field, name in files[0].items()}
    learnt = target(build(entry, **paths)).vocab_size
    hold(learnt <= VOCAB_SIZE, f"train() learns at most {VOCAB_SIZE} ids; it learnt {learnt}")
    return paths


def _check_tokenizer(tokenizer: Tokenizer, lossless: bool) -> None:
    has(tokenizer, "a tokenizer", "encode", "encode_batch", "decode")
    lacks = [name for name in ("vocab_size", "eod") if not hasattr(tokenizer, name)]
    hold(not lacks, f"a tokenizer has vocab_size and eod; it has no {', '.join(lacks)}")
    size = tokenizer.vocab_size
    hold(isinstance(size, int) and size > 0, f"vocab_size is a number of ids, not {size!r}")
    hold(isinstance(tokenizer.eod, int) and 0 <= tokenizer.eod < size, f"eod is an id below {size}: {tokenizer.eod!r}")
    for text in TEXTS:
        ids = tokenizer.encode(text)
        hold(isinstance(ids, list), f"encode() returns a list, not {type(ids).__name__}")
        wrong = [token for token in ids if not (isinstance(token, int) and 0 <= token < size)]
        hold(not wrong, f"every id is an int from 0 to below vocab_size {size}; of {text!r} {wrong[:1]} is not")
        hold(tokenizer.encode(text) == ids, f"the same text gives the same ids: {text!r}")
        back = tokenizer.decode(iter(ids))
        hold(isinstance(back, str), f"decode() returns a str, not {type(back).__name__}")
        hold(not lossless or back == text, f"decode(encode(text)) == text: {text!r} became {back!r}")
    alone = [tokenizer.encode(text) for text in TEXTS]
    hold(tokenizer.encode_batch(TEXTS) == alone, "encode_batch() gives for each text what encode() gives")
    hold(tokenizer.encode_batch([]) == [], "encode_batch() of an empty list is an empty list")
