import json

import numpy as np
import pytest

from neox_core.errors import DataError
from neox_core.testing import assert_light, build, load_only

TEXTS = ["one", "caf\u00e9 \u6f22\u5b57", "a\nb", "x" * 300, "last"]


class Bytes:
    """An id for each byte; counts how often it is asked."""

    vocab_size, eod = 257, 256

    def __init__(self):
        self.asked = 0

    def encode_batch(self, texts):
        self.asked += len(texts)
        return [list(text.encode()) for text in texts]


def source(path, tokenizer=None, identity="bytes", **settings):
    entry = load_only("neox-data-text").registry.find("data backend", "text")
    backend = entry.load()(build(entry, **settings))
    backend.use(tokenizer or Bytes(), identity)
    return backend.open(path)


def lines(texts, key="text"):
    return "".join(json.dumps({key: text}) + "\n" for text in texts)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.jsonl").write_text(lines([*TEXTS[:2], "", TEXTS[2]]) + "\n")
    (folder / "b.txt").write_text(TEXTS[3])
    (folder / "c.jsonl").write_text(lines(TEXTS[4:]))
    return folder


def documents_of(found):
    return [found.read(index).tolist() for index in range(len(found.sizes))]


EXPECTED = [[*text.encode(), 256] for text in TEXTS]


def test_listing_is_light():
    assert_light("neox-data-text")


def test_documents_are_the_texts_of_the_files(folder):
    found = source(folder)
    assert documents_of(found) == EXPECTED
    assert found.sizes.tolist() == [len(document) for document in EXPECTED]
    assert found.sizes.dtype == np.int32
    assert found.read(3, 5, 3).tolist() == [120] * 3
    assert not found.read(0).flags.writeable
    assert documents_of(source(folder / "c.jsonl")) == EXPECTED[4:]
    assert documents_of(source(folder / "*.jsonl")) == [*EXPECTED[:3], EXPECTED[4]]


def test_lengths_are_counted_once_for_the_same_files_and_tokenizer(folder):
    assert len(source(folder).sizes) == 5
    again = Bytes()
    assert len(source(folder, again).sizes) == 5
    assert again.asked == 0
    other = Bytes()
    source(folder, other, identity="another vocabulary")
    assert other.asked == 5
    (folder / "b.txt").write_text("changed, and longer " * 40)
    changed = Bytes()
    found = source(folder, changed)
    assert changed.asked == 5
    assert documents_of(found)[3] == [*("changed, and longer " * 40).encode(), 256]


def test_a_document_is_tokenized_once_while_it_is_in_use(folder):
    tokenizer = Bytes()
    found = source(folder, tokenizer)
    before = tokenizer.asked
    for offset in range(0, 300, 10):
        found.read(3, offset, 10)
    assert tokenizer.asked == before + 1


def test_a_file_that_changes_under_a_run_is_said(folder):
    found = source(folder)
    (folder / "b.txt").write_text("shorter")
    with pytest.raises(DataError, match=r"b\.txt: was changed while it was read"):
        found.read(3)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("d.jsonl", '{"text": "fine"}\nbroken\n', r"d\.jsonl, at byte 17: is not JSON"),
        ("d.jsonl.gz", "", r"d\.jsonl\.gz: cannot be read from the middle"),
        ("d.parquet", "", r"d\.parquet: cannot be read from the middle"),
    ],
)
def test_what_cannot_be_read_is_said(folder, name, content, says):
    (folder / name).write_text(content)
    with pytest.raises(DataError, match=says):
        source(folder)


def test_another_member_can_hold_the_text(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(["yes"], "body"))
    assert documents_of(source(tmp_path / "a.jsonl", text_key="body")) == [[*b"yes", 256]]
    with pytest.raises(DataError, match="holds no text under 'text'; it has body"):
        source(tmp_path / "a.jsonl")


def test_without_text_or_tokenizer_or_writing(tmp_path):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(DataError, match="there is no text"):
        source(tmp_path / "a.txt")
    entry = load_only("neox-data-text").registry.find("data backend", "text")
    backend = entry.load()(build(entry))
    with pytest.raises(DataError, match="needs a tokenizer"):
        backend.open(tmp_path)
    with pytest.raises(DataError, match="is read only"):
        backend.create(tmp_path / "x", 10)


def test_reading_beyond_a_document_is_refused(folder):
    with pytest.raises(IndexError, match="document 0 has 4 tokens, not 3 to 5"):
        source(folder).read(0, 3, 2)
    with pytest.raises(IndexError, match="no document 5"):
        source(folder).read(5)
