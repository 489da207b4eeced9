import gzip
import json
import os

import pyarrow as pa
import pytest
import zstandard
from neox_data.corpus import Tally, num_bytes, read_documents, text_files
from pyarrow import parquet

from neox_core.errors import DataError

TEXTS = ["one\ntwo", "\u2028 caf\u00e9 \U0001f600", "", "x" * 5000]
LINES = "".join(json.dumps({"text": text, "title": f"t{index}"}) + "\n" for index, text in enumerate(TEXTS)).encode()


def read(path, keys=(), *, skip_bad=False, after=(0, 0)):
    tally = Tally()
    corpus = text_files([str(path)], keys, skip_bad=skip_bad)
    return [document.texts for document in read_documents(corpus, tally, after)], tally


def write_parquet(path, rows=TEXTS):
    titles = [f"t{index}" for index in range(len(rows))]
    parquet.write_table(pa.table({"text": rows, "title": titles, "n": list(range(len(rows)))}), path)


PACKERS = {
    "a.jsonl": lambda raw: raw,
    "a.jsonl.gz": gzip.compress,
    "a.jsonl.zst": zstandard.ZstdCompressor().compress,
    "several.jsonl.gz": lambda raw: gzip.compress(raw[:100]) + gzip.compress(raw[100:]),
    "several.jsonl.zst": lambda raw: b"".join(map(zstandard.ZstdCompressor().compress, (raw[:7], raw[7:]))),
}


@pytest.mark.parametrize("name", PACKERS)
def test_lines_come_out_of_every_packing(tmp_path, name, monkeypatch):
    monkeypatch.setattr("neox_data.texts.CHUNK_BYTES", 64)
    (tmp_path / name).write_bytes(PACKERS[name](LINES))
    assert read(tmp_path / name)[0] == [(text,) for text in TEXTS]
    assert read(tmp_path / name, ["title", "text"])[0] == [(f"t{i}", text) for i, text in enumerate(TEXTS)]
    corpus = text_files([str(tmp_path / name)])
    assert sum(document.bytes_read for document in read_documents(corpus, Tally())) == num_bytes(corpus)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst"])
def test_whole_texts_come_out_of_packings(tmp_path, name):
    pack = gzip.compress if name.endswith("gz") else zstandard.ZstdCompressor().compress
    (tmp_path / name).write_bytes(pack(LINES))
    assert read(tmp_path / name)[0] == [(LINES.decode(),)]


def test_a_parquet_file_is_a_document_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr("neox_data.texts.ROWS_AT_ONCE", 3)
    write_parquet(tmp_path / "a.parquet", [*TEXTS, None])
    texts, tally = read(tmp_path / "a.parquet")
    assert texts == [(text,) for text in [*TEXTS, ""]]
    assert tally.empty == 2
    corpus = text_files([str(tmp_path / "a.parquet")])
    assert sum(document.bytes_read for document in read_documents(corpus, Tally())) == num_bytes(corpus)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_a_file_that_is_cut_short_is_said(tmp_path, name):
    path = tmp_path / name
    if name == "a.parquet":
        write_parquet(path)
    else:
        path.write_bytes(PACKERS[name](LINES))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=rf"{name}: (is cut short|cannot be (read|unpacked))"):
        read(path)


@pytest.mark.parametrize(
    ("name", "content", "keys", "says"),
    [
        ("a.jsonl.gz", b"no gzip", (), r"a\.jsonl\.gz: cannot be unpacked"),
        ("a.jsonl.zst", b"no zstd at all", (), r"a\.jsonl\.zst: cannot be unpacked"),
        ("a.parquet", b"PAR1 and nothing else PAR1", (), r"a\.parquet: cannot be read"),
        ("a.csv", b"", (), "is neither .jsonl nor .txt nor .parquet"),
        ("a.txt", b"x", ("a", "b"), "is one text, and there are 2 --json-keys"),
        ("a.jsonl", b"{}", ("a", "a"), "names a key twice"),
    ],
)
def test_what_is_not_what_its_name_says_is_refused(tmp_path, name, content, keys, says):
    (tmp_path / name).write_bytes(content)
    if name == "a.txt":
        (tmp_path / "b.jsonl").write_bytes(b"")
    with pytest.raises(DataError, match=says):
        read(tmp_path if name == "a.txt" else tmp_path / name, keys)


def test_a_column_that_is_missing_or_holds_no_text_is_said(tmp_path):
    write_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="has no column 'body'; it has n, text, title"):
        read(tmp_path / "a.parquet", ["body"])
    with pytest.raises(DataError, match=r"a\.parquet:1: holds no text under 'n' but int"):
        read(tmp_path / "a.parquet", ["n"])


def test_broken_records_are_left_out_and_counted(tmp_path):
    lines = LINES.splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_bytes(b"".join([lines[0], b"{broken\n", lines[1], b'{"text": 5}\n', b"\xff\n"]))
    texts, tally = read(tmp_path / "a.jsonl", skip_bad=True)
    assert [text for (text,) in texts if text] == TEXTS[:2]
    assert tally.bad == 3
    assert tally.empty == 0
    assert "a.jsonl:2: is not JSON" in tally.first_bad


def test_half_a_character_is_a_broken_record(tmp_path):
    lines = ['{"text": "a\\ud83d b"}', '{"text": "\\uD83D\\uDE00"}', '{"text": "\\\\ud83d"}']  # half, whole, no escape
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"a\.jsonl:1: the text under 'text' holds half a character at 1"):
        read(tmp_path / "a.jsonl")
    texts, tally = read(tmp_path / "a.jsonl", skip_bad=True)
    assert [text for (text,) in texts if text] == ["\U0001f600", "\\ud83d"]
    assert tally.bad == 1


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.jsonl.gz", "a.parquet"])
def test_a_pipe_is_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="is not a regular file"):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst", "a.parquet"])
def test_reading_can_begin_behind_any_record(tmp_path, name):
    (tmp_path / "0.txt").write_text("first file")
    if name == "a.parquet":
        write_parquet(tmp_path / name)
    else:
        (tmp_path / name).write_bytes(PACKERS[name](LINES))
    (tmp_path / "b.txt").write_text("last file")
    corpus = text_files([str(tmp_path)])
    whole = list(read_documents(corpus, Tally()))
    assert len(whole) == 6
    for index, document in enumerate(whole):
        rest = list(read_documents(corpus, Tally(), (document.file, document.record)))
        assert rest == whole[index + 1 :]


def test_patterns_stand_for_files(tmp_path):
    for name in ("a/x.txt", "a/y.jsonl", "b/z.txt", "b/z.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    found = text_files([str(tmp_path / "*" / "*.txt"), str(tmp_path / "**" / "y*")]).files
    assert [path.name for path in found] == ["x.txt", "z.txt", "y.jsonl"]
    with pytest.raises(DataError, match=r"\*\.csv: matches no"):
        text_files([str(tmp_path / "*" / "*.csv")])
