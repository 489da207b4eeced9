"""`neox data` with a tokenizer and a format of somebody else: really installed, in a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LISTING = """
from attrs import frozen
from neox_core.api import Component, hookimpl, setting

@frozen
class LetterSettings:
    lower: bool = setting(False, help="Make all letters small.")
    letters_end: int = setting(help="The id that ends a document.")

@frozen
class ChunkSettings:
    chunk_suffix: str = setting("chunks", help="Ending of the file.")

@frozen
class HiddenSettings:
    hidden_key: str = setting(help="A setting without a default.")

@hookimpl
def neox_tokenizers():
    return [
        Component("Letters", "neox_letters.parts:Letters", LetterSettings),
        Component("Far", "neox_letters.parts:Letters", LetterSettings, needs=("no_such_library",)),
    ]

@hookimpl
def neox_data_backends():
    return [
        Component("chunks", "neox_letters.parts:Chunks", ChunkSettings),
        Component("hidden", "neox_letters.parts:Chunks", HiddenSettings),
    ]
"""
PARTS = """
import json
import numpy as np
from pathlib import Path

class Letters:
    def __init__(self, settings):
        self.lower, self.eod, self.vocab_size = settings.lower, settings.letters_end, 256

    def encode(self, text):
        return list((text.lower() if self.lower else text).encode())

    def encode_batch(self, texts):
        return [self.encode(text) for text in texts]

    def decode(self, ids):
        return bytes(ids).decode()

class Source:
    def __init__(self, documents):
        self.documents = [np.array(each, dtype=np.int32) for each in documents]
        self.sizes = np.array([len(each) for each in self.documents], dtype=np.int32)
        self.dtype = np.dtype(np.int32)

    def read(self, document, offset=0, length=None):
        ids = self.documents[document][offset:]
        return ids if length is None else ids[:length]

class Writer:
    def __init__(self, path):
        self.path, self.documents = path, []

    def add_document(self, tokens):
        self.documents.append([int(each) for each in tokens])

    def close(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.documents))

    def abort(self):
        pass

class Chunks:
    def __init__(self, settings):
        self.suffix = settings.chunk_suffix

    def files(self, prefix):
        return (Path(f"{prefix}.{self.suffix}"),)

    def recognises(self, prefix):
        return self.files(prefix)[0].is_file()

    def open(self, prefix):
        return Source(json.loads(self.files(prefix)[0].read_text()))

    def create(self, prefix, vocab_size):
        return Writer(self.files(prefix)[0])
"""


@pytest.fixture
def neox(site: Any, tmp_path: Path) -> Any:
    """Runs `neox` with the plugin beside all that are installed here."""
    site.install("neox-letters", LISTING, {"neox_letters/parts.py": PARTS})
    (tmp_path / "a.txt").write_text("AbC")

    def run(*argv: str, code: int = 0) -> str:
        env = {**os.environ, "PYTHONPATH": str(site.folder)}
        command = [str(Path(sys.executable).with_name("neox")), *argv]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    return run


def test_settings_of_a_tokenizer_and_of_a_format(neox: Any, tmp_path: Path) -> None:
    prepare = ("data", "prepare", "a.txt", "--out", "out", "--tokenizer-type", "Letters", "--data-impl", "chunks")
    said = neox(*prepare, code=4)
    assert "needs letters_end, and cannot be learnt from text" in said
    assert "--set letters_end=..." in said
    assert "--vocab-size is for learning" in neox(*prepare, "--set", "letters-end=0", "--vocab-size", "300", code=4)
    assert "letters_end: must be a whole number" in neox(*prepare, "--set", "letters-end=x", code=2)
    assert "--set uper: no such setting of tokenizer Letters or data backend chunks" in neox(
        *prepare, "--set", "letters-end=0", "--set", "uper=1", code=2
    )
    done = neox(*prepare, "--set", "letters-end=0", "--set", "Letters.lower=true", "--set", "chunk-suffix=mine")
    assert (tmp_path / "out" / "out.mine").read_text() == "[[97, 98, 99, 0]]"
    for line in ("lower: true", "letters-end: 0", "chunk-suffix: mine", "tokenizer-type: Letters"):
        assert f"\n{line}\n" in done
    assert "needs no_such_library, not installed" in neox(*prepare[:5], "--tokenizer-type", "Far", code=3)


def test_infer_and_merge_ask_the_backends(neox: Any, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.chunks").write_text("[[1, 2], [3]]")
    neox("data", "merge", "one", "two", "--out", "both", "--data-impl", "chunks")
    assert (tmp_path / "both.chunks").read_text() == "[[1, 2], [3], [1, 2], [3]]"
    assert "4 documents, 6 tokens, stored as int32" in neox("data", "inspect", "both")
    config = "num-layers: 2\nhidden-size: 64\nnum-attention-heads: 4\nseq-length: 2\nmax-position-embeddings: 4\n"
    config += "data-path: both\npadded-vocab-size: 8\ntrain-iters: 1\ntrain_micro_batch_size_per_gpu: 1\n"
    (tmp_path / "c.yml").write_text(config + "optimizer: {type: Adam, params: {lr: 1e-3}}\n")
    assert "chunks (neox-letters 1.0)" in neox("config", "show", "c.yml")
