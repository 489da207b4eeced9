"""check_tokenizer and check_monitor pass sound components and name the clause that a faulty one breaks."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy
import pytest
from attrs import frozen
from neox_author.testing import check_monitor, check_tokenizer

from neox_core.api import setting
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.component import Component
from neox_core.hooks.registry import Entry, PluginInfo, Registry

Offer = Callable[..., Catalog]


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Offer:
    def make(kind: str, target: Any, settings: type | None = None) -> Catalog:
        module = ModuleType("neox_mutants")
        module.target = target
        monkeypatch.setitem(sys.modules, "neox_mutants", module)
        registry = Registry()
        plugin = PluginInfo("neox-mutants", "0.1.0", "neox_mutants")
        registry.add(Entry(kind, Component("mutant", "neox_mutants:target", settings), plugin))
        return Catalog(pluggy.PluginManager("neox"), registry, ())

    return make


class Bytes:
    """An id for each byte, and one for the end."""

    vocab_size, eod = 257, 256

    def __init__(self, settings: Any) -> None:
        pass

    def encode(self, text):
        return list(text.encode())

    def encode_batch(self, texts):
        return [self.encode(text) for text in texts]

    def decode(self, ids):
        return bytes(ids).decode()


def changed(**attributes: Any) -> type:
    return type("Changed", (Bytes,), attributes)


@frozen
class LetterSettings:
    letters: str = setting(help="File of letters.", file=True)


class Letters(Bytes):
    """Learns the letters of a text."""

    def __init__(self, settings: LetterSettings) -> None:
        self.letters = Path(settings.letters).read_text(encoding="utf-8")
        self.vocab_size = len(self.letters) + 1
        self.eod = len(self.letters)

    def encode(self, text):
        return [self.letters.index(letter) for letter in text]

    def decode(self, ids):
        return "".join(self.letters[each] for each in ids)

    @classmethod
    def train(cls, texts, vocab_size, folder):
        letters = sorted({letter for text in texts for letter in text})[: vocab_size - 1]
        (folder / "letters.txt").write_text("".join(letters), encoding="utf-8")
        return {"letters": "letters.txt"}


class LettersAnyhow(Letters):
    counter = 0

    @classmethod
    def train(cls, texts, vocab_size, folder):
        cls.counter += 1
        (folder / "letters.txt").write_text(str(cls.counter), encoding="utf-8")
        return {"letters": "letters.txt"}


class LettersElsewhere(Letters):
    @classmethod
    def train(cls, texts, vocab_size, folder):
        return {"letters": "nothing.txt"}


class LettersTooMany(Letters):
    @classmethod
    def train(cls, texts, vocab_size, folder):
        (folder / "letters.txt").write_text("x" * vocab_size, encoding="utf-8")
        return {"letters": "letters.txt"}


def test_sound_tokenizers_pass(offer: Offer) -> None:
    check_tokenizer(offer("tokenizer", Bytes), "mutant")
    check_tokenizer(offer("tokenizer", Letters, LetterSettings), "mutant")
    check_tokenizer(
        offer("tokenizer", changed(decode=lambda self, ids: "".join("x" for _ in ids))), "mutant", lossless=False
    )


@pytest.mark.parametrize(
    ("tokenizer", "clause"),
    [
        (changed(vocab_size=0), "vocab_size is a number of ids"),
        (changed(eod=property()), "a tokenizer has vocab_size and eod; it has no eod"),
        (
            changed(encode_batch=None),
            "has the methods encode, encode_batch, decode; it has no encode_batch",
        ),
        (changed(encode=lambda self: []), "it raises TypeError: .*takes 1 positional argument but 2 were given"),
        (changed(eod=257), "eod is an id below 257"),
        (changed(eod=None), "eod is an id below 257"),
        (changed(encode=lambda self, text: tuple(text.encode())), r"encode\(\) returns a list"),
        (changed(encode=lambda self, text: [float(each) for each in text.encode()]), "every id is an int"),
        (changed(vocab_size=255, eod=0, encode=lambda self, text: [255] * len(text)), "below vocab_size 255"),
        (changed(encode=lambda self, text: list(text.strip().encode())), r"decode\(encode\(text\)\) == text"),
        (changed(decode=lambda self, ids: bytes(ids)), r"decode\(\) returns a str"),
        (changed(encode_batch=lambda self, texts: [self.encode("".join(texts))]), "for each text what encode"),
        (
            changed(encode_batch=lambda self, texts: [self.encode(t) for t in texts] or [[]]),
            "an empty list is an empty list",
        ),
        (LettersAnyhow, "the same texts give the same files"),
        (LettersElsewhere, r"\['nothing.txt'\] are not there"),
        (LettersTooMany, "learns at most 300 ids; it learnt 301"),
    ],
)
def test_a_faulty_tokenizer(offer: Offer, tokenizer: Any, clause: str) -> None:
    settings = LetterSettings if issubclass(tokenizer, Letters) else None
    with pytest.raises(AssertionError, match=clause):
        check_tokenizer(offer("tokenizer", tokenizer, settings), "mutant")


class Notes:
    def __init__(self, run: Any, settings: Any) -> None:
        self.file = (run.run_dir / "notes.txt").open("a", encoding="utf-8")

    def log(self, step, values):
        self.file.write(f"{step} {values}\n")

    def say(self, message):
        self.file.write(message)

    def close(self):
        self.file.close()


class OnlyOnce(Notes):
    def __init__(self, run: Any, settings: Any) -> None:
        self.file = (run.run_dir / "notes.txt").open("x", encoding="utf-8")


class Picky(Notes):
    def log(self, step, values):
        super().log(step, {"loss": values["loss"]})


class Greedy(Notes):
    def log(self, step, values):
        values.clear()


class Ascii(Notes):
    def say(self, message):
        message.encode("ascii")


class Silent:
    def __init__(self, run: Any, settings: Any) -> None:
        pass

    def log(self, step, values):
        pass


def test_a_sound_monitor_passes(offer: Offer) -> None:
    check_monitor(offer("monitor", Notes), "mutant")


@pytest.mark.parametrize(
    ("monitor", "clause"),
    [
        (OnlyOnce, "made for a run from step 20; it raises FileExistsError"),
        (Picky, "takes what a step says, .*KeyError"),
        (Greedy, "leaves the values as they are"),
        (Ascii, "takes any text"),
        (Silent, "it has no say"),
    ],
)
def test_a_faulty_monitor(offer: Offer, monitor: Any, clause: str) -> None:
    with pytest.raises(AssertionError, match=clause):
        check_monitor(offer("monitor", monitor), "mutant")
