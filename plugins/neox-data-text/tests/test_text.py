import gzip
import json
from itertools import chain, islice

import numpy as np
import pyarrow as pa
import pytest
import torch
import zstandard
from attrs import evolve
from neox_author.testing import assert_light, build, load_only
from neox_causal_lm.pack import Share, share_of
from neox_causal_lm.streams import Source, Streams
from pyarrow import parquet
from torch.utils.data import DataLoader

from neox_core.data.stream import Layout, Mark, StreamBatches
from neox_core.errors import DataError
from neox_core.plan.runfile import ComponentRef

TEXTS = ["one", "caf\u00e9 \u6f22\u5b57", "a\nb", "x" * 300, "last"]
EXPECTED = [[*text.encode(), 256] for text in TEXTS]
SEQ = 7
BACKEND = ComponentRef("data backend", "text", "neox-data-text", "0", "nowhere:Nothing")


class Bytes:
    """An id for each byte; counts how often it is asked."""

    vocab_size, eod = 257, 256

    def __init__(self):
        self.asked = 0

    def encode_batch(self, texts):
        self.asked += len(texts)
        return [list(text.encode()) for text in texts]


def stream(path, tokenizer=None, identity="bytes", **settings):
    entry = load_only("neox-data-text").registry.find("data backend", "text")
    backend = entry.load()(build(entry, **settings))
    backend.use(tokenizer or Bytes(), identity)
    return backend.stream(path)


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


def everything(number):
    return True


def documents_of(found):
    return [ids.tolist() for *_, ids in found.documents((0, 1), 0, everything)]


def test_listing_is_light():
    assert_light("neox-data-text")


def test_documents_are_the_texts_of_the_files(folder):
    assert documents_of(stream(folder)) == EXPECTED
    assert documents_of(stream(folder / "c.jsonl")) == EXPECTED[4:]
    assert documents_of(stream(folder / "*.jsonl")) == [*EXPECTED[:3], EXPECTED[4]]
    assert documents_of(stream(folder, append_eod=False)) == [document[:-1] for document in EXPECTED]


def test_reading_can_begin_at_any_document(folder):
    whole = list(stream(folder).documents((0, 1), 0, everything))
    assert [place for *place, _ in whole] == [[0, 1, 0], [0, 2, 1], [0, 4, 3], [1, 1, 5], [2, 1, 6]]
    for index, (file, record, number, _) in enumerate(whole):
        rest = list(stream(folder).documents((file, record), number, everything))
        assert [ids.tolist() for *_, ids in rest] == EXPECTED[index:]
    odd = stream(folder).documents((0, 1), 0, lambda number: number % 2 == 1)
    assert [number for _, _, number, _ in odd] == [1, 3, 5]


def pack(texts, kind):
    raw = lines(texts).encode()
    if kind == "jsonl.gz":
        return gzip.compress(raw)
    if kind == "jsonl.zst":
        return zstandard.ZstdCompressor().compress(raw)
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table({"text": texts}), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst", "parquet"])
def test_packed_files_are_read_as_they_come(tmp_path, kind):
    (tmp_path / f"a.{kind}").write_bytes(pack(TEXTS, kind))
    found = stream(tmp_path)
    assert documents_of(found) == EXPECTED
    assert [ids.tolist() for *_, ids in found.documents((0, 4), 3, everything)] == EXPECTED[3:]


def test_nothing_is_tokenized_before_it_is_read_nor_what_is_not_wanted(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines([letter * 100_000 for letter in "abcdefghij"]))
    tokenizer = Bytes()
    found = stream(tmp_path, tokenizer).documents((0, 1), 0, lambda number: number != 1)
    assert tokenizer.asked == 0
    assert next(found)[3][0] == ord("a")
    assert tokenizer.asked <= 3
    assert sum(1 for _ in found) == 8
    assert tokenizer.asked == 9
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"], "and nothing is written"


def test_the_identity_follows_the_text_and_the_tokenizer(folder):
    known = {stream(folder).identity, stream(folder, identity="b").identity, stream(folder, append_eod=False).identity}
    (folder / "b.txt").write_text("another text")
    known.add(stream(folder).identity)
    assert len(known) == 4


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("d.jsonl", b'{"text": "fine"}\nbroken\n', r"d\.jsonl:2: is not JSON"),
        ("d.jsonl.gz", gzip.compress(b'{"text": "fine"}\n')[:-9], r"d\.jsonl\.gz: is cut short"),
        ("d.parquet", b"PAR1", r"d\.parquet: cannot be read"),
    ],
)
def test_what_cannot_be_read_is_said(folder, name, content, says):
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=says):
        documents_of(stream(folder))


def test_another_member_can_hold_the_text(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(["yes"], "body"))
    assert documents_of(stream(tmp_path / "a.jsonl", text_key="body")) == [[*b"yes", 256]]
    with pytest.raises(DataError, match="holds no text under 'text'; it has body"):
        documents_of(stream(tmp_path / "a.jsonl"))


def test_without_tokenizer_or_for_picking_or_writing(tmp_path):
    entry = load_only("neox-data-text").registry.find("data backend", "text")
    backend = entry.load()(build(entry))
    with pytest.raises(DataError, match="needs a tokenizer"):
        backend.stream(tmp_path)
    with pytest.raises(DataError, match="text is read in order") as raised:
        backend.open(tmp_path)
    assert "neox data prepare" in raised.value.hint
    with pytest.raises(DataError, match="is read only"):
        backend.create(tmp_path / "x", 10)


def batches(sources, layout=(2, 1, 0, 1), steps=20, start=None, first_step=0, share=None, vocab_size=257):
    streams = Streams(tuple(sources), share or Share(), SEQ, vocab_size, BACKEND)
    return StreamBatches(streams, Layout(*layout), start=start, seq_length=SEQ, first_step=first_step, steps=steps)


def by_step(sources, layout, **more):
    """[steps, samples, SEQ + 1] and the mark of each step, from all ranks."""
    micro, accumulation, _, size = layout
    ranks = [list(batches(sources, (micro, accumulation, rank, size), **more)) for rank in range(size)]
    rows = torch.cat([torch.cat([batch for batch, _ in same]) for same in zip(*ranks, strict=True)])
    marks = [[mark for _, mark in rank if mark is not None] for rank in ranks]
    assert all(rank == marks[0] for rank in marks)
    return rows.reshape(-1, micro * accumulation * size, SEQ + 1), marks[0]


def one(folder):
    return [Source("texts", stream(folder), 1.0)]


def cut(tokens, count):
    """Samples of a text that is read again and again."""
    endless = np.tile(tokens, count * SEQ // len(tokens) + 2)
    return torch.tensor(np.stack([endless[index * SEQ : index * SEQ + SEQ + 1] for index in range(count)]))


@pytest.mark.parametrize("layout", [(12, 1, 0, 1), (2, 2, 0, 3), (1, 4, 0, 3), (3, 1, 0, 4), (1, 12, 0, 1)])
def test_sample_i_is_the_i_th_of_the_text_whatever_the_ranks(folder, layout):
    found, marks = by_step(one(folder), layout, steps=9)  # twice through the text
    assert torch.equal(found.reshape(-1, SEQ + 1), cut(list(chain(*EXPECTED)), 108))
    assert marks == by_step(one(folder), (12, 1, 0, 1), steps=9)[1]
    assert len({mark.trail for mark in marks}) == 9


def test_a_run_goes_on_from_every_step(folder):
    whole, marks = by_step(one(folder), (4, 1, 0, 1))
    for mark in marks[:-1]:
        again = Mark.of(json.loads(json.dumps(mark.plain())))
        rest, after = by_step(one(folder), (2, 1, 0, 2), start=again, first_step=again.step)
        assert torch.equal(rest, whole[again.step :])
        assert after == marks[again.step :]
    assert torch.equal(by_step(one(folder), (4, 1, 0, 1), first_step=13)[0], whole[13:]), "also without a mark"


def test_the_hash_of_a_step_follows_from_those_before_it(folder):
    _, marks = by_step(one(folder), (4, 1, 0, 1))
    _, others = by_step(one(folder), (4, 1, 0, 1), start=evolve(marks[4], trail=marks[4].trail ^ 1), first_step=5)
    assert [mark.place for mark in others] == [mark.place for mark in marks[5:]]
    assert not {mark.trail for mark in others} & {mark.trail for mark in marks}


def test_going_on_reads_nothing_of_what_came_before(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(["x" * 50] * 100))
    mark = next(mark for _, mark in batches(one(tmp_path), steps=300) if mark.step == 250)  # sample 500: document 68
    tokenizer = Bytes()
    list(batches([Source("t", stream(tmp_path, tokenizer), 1.0)], steps=251, start=mark, first_step=250))
    assert tokenizer.asked == 100 - 68


def test_several_texts_take_turns_by_their_weights(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name * 100)
    sources = [
        Source(name, stream(tmp_path / f"{name}.txt", append_eod=False), w) for name, w in (("a", 3.0), ("b", 1.0))
    ]
    found, marks = by_step(sources, (4, 1, 0, 1))
    assert [int((step[:, 0] == ord("a")).sum()) for step in found] == [3] * 20
    assert marks[-1].place["taken"] == (60, 20)
    rest, _ = by_step(sources, (4, 1, 0, 1), start=marks[6], first_step=7)
    assert torch.equal(rest, found[7:])


def test_documents_are_shared_out_over_the_splits():
    shares = [share_of((969, 30, 1), split) for split in range(3)]
    chosen = [[number for number in range(100_000) if share.has(number)] for share in shares]
    assert sorted(chain(*chosen)) == list(range(100_000))
    assert [len(each) for each in chosen] == pytest.approx([96_900, 3_000, 100], abs=3)
    assert all(any(start <= number < start + 100 for number in chosen[1]) for start in range(0, 100_000, 100))


def test_a_share_of_nothing_and_ids_outside_of_the_vocabulary_are_said(folder):
    with pytest.raises(DataError, match="texts: there are no documents"):
        raise next(iter(batches(one(folder), share=Share(0.9999, 1.0))))
    *_, error = batches(one(folder), vocab_size=200)
    assert isinstance(error, DataError)
    assert error.message == "texts: file 0, record 1: id 256 is not among the model's 200"


def test_a_process_can_read_ahead(folder):
    loader = DataLoader(batches(one(folder)), batch_size=None, num_workers=1, collate_fn=lambda each: each)
    alone = list(batches(one(folder)))
    found = list(islice(loader, 20))
    assert all(torch.equal(a, b) and m == n for (a, m), (b, n) in zip(found, alone, strict=True))
