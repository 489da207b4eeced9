"""`neox data prepare --split-sentences`: documents whose sentences lie apart."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from neox_author.testing import build, load_only

NEOX = [sys.executable, "-m", "neox_core", "data", "prepare"]
TEXTS = ["Dr. Smith went home. He slept well! Did he dream?", "One line without an end", "First of two. Second of two."]
SENTENCES = [
    ["Dr. Smith went home.", "He slept well!", "Did he dream?"],
    [TEXTS[1]],
    ["First of two.", "Second of two."],
]


def prepare(folder: Path, *args: str, code: int = 0) -> str:
    if not (folder / "texts.jsonl").exists():
        (folder / "texts.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in TEXTS))
    argv = [*NEOX, "texts.jsonl", "--out", "out", "--tokenizer-type", "CharLevelTokenizer", *args]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def component(plugin: str, kind: str, name: str) -> object:
    entry = load_only(plugin).registry.find(kind, name)
    return entry.load()(build(entry))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sentences_lie_apart(workers: str, tmp_path: Path) -> None:
    said = prepare(tmp_path, "--split-sentences", "--workers", workers)
    source = component("neox-data-indexed", "data backend", "mmap").open(tmp_path / "out/out")
    letters = component("neox-tokenizers", "tokenizer", "CharLevelTokenizer")
    found = [letters.decode(source.read(at).tolist()) for at in range(len(source.sizes))]
    assert found == [each for sentences in SENTENCES for each in sentences], "and no token ends a document"
    assert source.bounds.tolist() == [0, 3, 4, 6]
    assert "3 documents" in said
    assert "is up to date" in prepare(tmp_path, "--split-sentences", "--workers", workers)
    assert "is up to date" not in prepare(tmp_path)


def test_the_end_of_a_document_is_of_its_last_sentence(tmp_path: Path) -> None:
    prepare(tmp_path, "--split-sentences", "--append-eod")
    source = component("neox-data-indexed", "data backend", "mmap").open(tmp_path / "out/out")
    eod = component("neox-tokenizers", "tokenizer", "CharLevelTokenizer").eod
    ends = [source.read(at)[-1] == eod for at in range(len(source.sizes))]
    assert ends == [False, False, True, True, False, True]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("--lang", "de"), 2, "--lang is for --split-sentences"),
        (("--split-sentences", "--lang", "../x"), 2, "is not a language"),
    ],
)
def test_bad_arguments_are_refused(args: tuple[str, ...], code: int, said: str, tmp_path: Path) -> None:
    assert said in prepare(tmp_path, *args, code=code)
    assert not (tmp_path / "out/out.idx").exists()


@pytest.mark.parametrize("stop", [1, 7, 10])
def test_a_writer_continues_where_it_was_left(stop: int, tmp_path: Path) -> None:
    """Documents of one sentence first: those of several begin to be told apart at the fifth."""
    documents = [[3], [4], [2], [1], [2, 3], [5], [1, 1, 4], [2], [], [6, 2], [3]]
    backend = component("neox-data-indexed", "data backend", "mmap")

    def add(writer: object, some: list[list[int]]) -> None:
        for sizes in some:
            writer.add_document(np.arange(sum(sizes)) % 50, sizes)

    whole = backend.create(tmp_path / "whole", 100)
    add(whole, documents)
    whole.close()
    writer = backend.create(tmp_path / "left", 100)
    add(writer, documents[:stop])
    position = json.loads(json.dumps(writer.checkpoint()))
    add(writer, documents[stop:][::-1])
    writer.leave()
    again = backend.resume(tmp_path / "left", 100, position)
    add(again, documents[stop:])
    again.close()
    for end in ("bin", "idx"):
        assert (tmp_path / f"left.{end}").read_bytes() == (tmp_path / f"whole.{end}").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["left.bin", "left.idx", "whole.bin", "whole.idx"]
