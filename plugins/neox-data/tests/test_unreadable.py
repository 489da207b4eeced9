"""Files that may not be read are one clear error that names them."""

import os
import tempfile
from pathlib import Path

import pytest
from neox_author.testing import build, load_only
from neox_data.corpus import Tally, read_documents, text_files

from neox_core.errors import DataError

NOBODY = 65534


@pytest.fixture
def folder():
    """A folder that anybody may read, and no more rights than anybody has: root may read everything."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        mine = os.geteuid()
        yield Path(name)
        os.seteuid(mine)


def lock(path):
    path.chmod(0)
    if os.geteuid() == 0:
        os.seteuid(NOBODY)


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
@pytest.mark.parametrize("name", ["mmap", "lazy", "cached"])
def test_of_a_dataset(folder, name, suffix):
    entry = load_only("neox-data-indexed").registry.find("data backend", name)
    backend = entry.load()(build(entry))
    writer = backend.create(folder / "tokens", 100)
    writer.add_document([1, 2, 3])
    writer.close()
    lock(folder / f"tokens{suffix}")
    with pytest.raises(DataError, match=rf"tokens{suffix}: cannot be read: Permission denied"):
        backend.open(folder / "tokens").read(0)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_of_text(folder, name):
    (folder / name).write_bytes(b"{}")
    corpus = text_files([str(folder)])
    lock(folder / name)
    with pytest.raises(DataError, match=rf"{name}: cannot be read"):
        list(read_documents(corpus, Tally()))


def test_of_a_tokenizer(folder):
    entry = load_only("neox-tokenizers").registry.find("tokenizer", "GPT2BPETokenizer")
    target = entry.load()
    for name in ("vocab.json", "merges.txt"):
        (folder / name).write_text("{}")
    settings = build_settings(entry, folder)
    lock(folder / "merges.txt")
    with pytest.raises(DataError, match=r"merges\.txt: cannot be read \(merge-file\): Permission denied"):
        target(settings)


def build_settings(entry, folder):
    return build(entry, vocab_file=str(folder / "vocab.json"), merge_file=str(folder / "merges.txt"))
