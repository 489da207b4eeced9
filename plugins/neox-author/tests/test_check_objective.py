"""`check_objective` on the objective of docs/plugins/objective.md and on packed streams, with one fault at a time."""

import re
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neox_author.testing import check_objective
from neox_causal_lm.objective import CausalLM

from neox_core.hooks.component import GROUP
from neox_core.hooks.loader import load_plugins

PAGE = (Path(__file__).resolve().parents[3] / "docs/plugins/objective.md").read_text("utf-8")
FILES = dict(re.findall(r"^`([\w./]+)`:\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the page's objective, and the check of what it holds."""
    for path, text in {**FILES, "neox_windows/__init__.py": ""}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("neox_windows", "neox_windows.plugin", "neox_windows.objective"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    catalog = load_plugins([EntryPoint("neox-windows", "neox_windows.plugin", GROUP)], {})
    check_objective(catalog, "random-windows")
    module = import_module("neox_windows.objective")

    return catalog, module.Windows, module.RandomWindows


def unseeded(self: Any, index: int) -> tuple[int, int]:
    return int(np.random.choice(self.documents)), 0


def leaks(self: Any, plan: Any, split: int, *rest: Any) -> None:
    FIRST["__init__"](self, plan, 0, *rest)


def remembers(self: Any, index: int) -> Any:
    self.seen = getattr(self, "seen", 0) + 1
    return FIRST["window"](self, index + self.seen // 40)


def by_length(self: Any, index: int) -> Any:
    return FIRST["window"](self, index + self.wanted)


def short(self: Any, index: int, into: Any) -> None:
    into[:-1] = self.source.read(*self.window(index), self.length - 1)


def unchecked(self: Any, index: int, into: Any) -> None:
    into[:] = self.source.read(*self.window(index), self.length)


def whole_documents(self: Any, indices: Any) -> Any:
    return np.array([self.window(index)[:1] for index in indices], dtype=np.int64)


def numbered(self: Any, indices: Any) -> Any:
    return np.arange(len(indices), dtype=np.int64)[:, None]


FIRST: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("member", "fault", "clause"),
    [
        ("window", unseeded, "the same in every process"),
        ("window", remembers, "does not depend on those that were read before|the same in every process"),
        ("window", by_length, "do not change when others follow"),
        ("__init__", leaks, "a document is in the samples of one split"),
        ("read", short, "fills all of `into`"),
        ("read", unchecked, "raises DataError for an id outside of the vocabulary"),
        ("identify", whole_documents, "samples that differ have different rows"),
        ("identify", numbered, "does not depend on the others that are asked for"),
        ("__len__", lambda self: 3, "as many samples as are wanted"),
        ("in_words", lambda self: "one line", "are lines"),
    ],
)
def test_a_fault_is_named(windows: Any, monkeypatch: pytest.MonkeyPatch, member: str, fault: Any, clause: str) -> None:
    catalog, samples, _ = windows
    FIRST.update({name: getattr(samples, name) for name in ("__init__", "window")})
    monkeypatch.setattr(samples, member, fault)
    with pytest.raises(AssertionError, match=clause):
        check_objective(catalog, "random-windows")


def test_a_split_without_documents_is_named(windows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, _, objective = windows
    whole = objective.samples

    def samples(self: Any, split: Any, *more: Any) -> Any:
        return whole(self, "train" if split == "test" else split, *more)

    monkeypatch.setattr(objective, "samples", samples)
    with pytest.raises(AssertionError, match="raises DataError where a split has no documents"):
        check_objective(catalog, "random-windows")


class _Reader:
    """A reader of a stream with one fault."""

    def __init__(self, reader: Any, fault: str) -> None:
        self._reader, self._fault = reader, fault

    def place(self) -> Any:
        place = self._reader.place()
        if self._fault == "the place reads on":
            self._reader.next_sample()
        if self._fault == "the offset is lost":
            place["places"] = [{**each, "offset": 0} for each in place["places"]]
        return place

    def next_sample(self) -> Any:
        who, ids = self._reader.next_sample()
        return who, ids[:-1] if self._fault == "a token short" else ids


class _Stream:
    def __init__(self, stream: Any, fault: str) -> None:
        self._stream, self._fault, self.identity = stream, fault, stream.identity

    def read_from(self, place: Any) -> Any:
        if self._fault == "it reads ahead":
            self._stream.read_from(place).next_sample()
        begins = place if self._fault != "any place is taken" or place is None or "taken" in place else None
        return _Reader(self._stream.read_from(begins), self._fault)


@pytest.mark.parametrize(
    ("fault", "clause"),
    [
        ("the place reads on", "whether place\\(\\) is called or not"),
        ("the offset is lost", "continues there"),
        ("a token short", "a sample is \\(whole numbers, ids\\)"),
        ("it reads ahead", "read_from\\(\\) reads no document yet"),
        ("any place is taken", "raises CheckpointError for a place"),
    ],
)
def test_a_fault_of_a_stream_is_named(monkeypatch: pytest.MonkeyPatch, fault: str, clause: str) -> None:
    whole = CausalLM.samples

    def samples(self: CausalLM, split: Any, datasets: Any, vocab_size: int, rounds: Any) -> Any:
        found = whole(self, split, datasets, vocab_size, rounds)
        return _Stream(found, fault) if datasets.streamed else found

    catalog = load_plugins([EntryPoint("neox-causal-lm", "neox_causal_lm.plugin", GROUP)], {})
    monkeypatch.setattr(CausalLM, "samples", samples)
    with pytest.raises(AssertionError, match=clause):
        check_objective(catalog, "causal-lm")
