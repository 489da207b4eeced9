import json
import os
from pathlib import Path

import pytest
from neox_data.contracts import Corpus
from neox_data.corpus import Tally, batches, fingerprint, num_bytes, read_documents, text_files

from neox_core.errors import DataError


def texts(corpus: Corpus, tally: Tally | None = None) -> list[str]:
    return [document.text for document in read_documents(corpus, tally or Tally())]


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_text_file_is_one_document_unchanged(tmp_path):
    text = "one\r\ntwo\n\n\ufeff\u2028three \U0001f600\n"
    assert texts(text_files([str(write(tmp_path / "a.txt", text))])) == [text]


def test_a_jsonl_file_is_a_document_a_line(tmp_path):
    wanted = ["a\nb", "\u2028 is no end of a line", "caf\u00e9"]
    lines = [json.dumps({"text": wanted[0], "meta": 1}), "", json.dumps({"text": wanted[1]}, ensure_ascii=False)]
    lines += ["  ", json.dumps({"text": wanted[2]})]
    tally = Tally()
    found = texts(text_files([str(write(tmp_path / "a.jsonl", "\r\n".join(lines)))]), tally)
    assert [text for text in found if text] == wanted
    assert tally.empty == 2


def test_another_member_can_hold_the_text(tmp_path):
    file = write(tmp_path / "a.jsonl", '{"body": "yes", "text": "no"}\n')
    assert texts(text_files([str(file)], ["body"])) == ["yes"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"text": "unfinished', "is not JSON: .*"),
        ('{"body": 1, "title": 2}', "holds no text under 'text'; it has body, title"),
        ("{}", "holds no text under 'text'; it has no members"),
        ('{"text": 5}', "holds no text under 'text' but a number"),
        ('{"text": ["a"]}', "holds no text under 'text' but a list"),
        ('{"text": false}', "holds no text under 'text' but true or false"),
        ("[1, 2]", "holds no text under 'text'; it is not an object"),
        (b'{"text": "\xff"}', "is not UTF-8 at byte 10 of the line"),
    ],
)
def test_a_broken_line_is_said_with_file_and_number(tmp_path, line, says):
    line = line.encode() if isinstance(line, str) else line
    file = write(tmp_path / "a.jsonl", b'{"text": "fine"}\n' * 2 + line + b"\n")
    with pytest.raises(DataError, match=rf"a\.jsonl:3: {says}"):
        texts(text_files([str(file)]))


def test_a_text_file_that_is_not_utf8_is_said_with_the_byte(tmp_path):
    file = write(tmp_path / "a.txt", b"abc\xe9d")
    with pytest.raises(DataError, match=r"a\.txt: is not UTF-8 at byte 3"):
        texts(text_files([str(file)]))


def test_a_folder_stands_for_its_files_by_name(tmp_path):
    for name in ("b.txt", "a/z.txt", "a/b.jsonl", "c.py", "a.md"):
        write(tmp_path / name, '{"text": "x"}' if name.endswith("jsonl") else "x")
    corpus = text_files([str(tmp_path)])
    assert [path.relative_to(tmp_path).as_posix() for path in corpus.files] == ["a/b.jsonl", "a/z.txt", "b.txt"]


def test_files_keep_the_order_they_are_given_in(tmp_path):
    paths = [str(write(tmp_path / name, name)) for name in ("z.txt", "a.txt")]
    assert texts(text_files(paths)) == ["z.txt", "a.txt"]


@pytest.mark.parametrize("name", ["missing.txt", "code.py", "empty"])
def test_what_cannot_be_read_is_refused(tmp_path, name):
    write(tmp_path / "code.py", "x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=name):
        text_files([str(tmp_path / name)])


def test_a_json_key_that_nothing_reads_is_refused(tmp_path):
    with pytest.raises(DataError, match="--json-key is of no use"):
        text_files([str(write(tmp_path / "a.txt", "x"))], "body")


def test_files_that_are_not_utf8_can_be_left_out_and_are_counted(tmp_path):
    files = (write(tmp_path / "a.py", b"\xff"), write(tmp_path / "b.py", ""), write(tmp_path / "c.py", "c"))
    tally = Tally()
    found = texts(Corpus(files, tmp_path, skip_undecodable=True), tally)
    assert [text for text in found if text] == ["c"]
    assert (tally.undecodable, tally.empty) == (1, 1)


def test_the_fingerprint_follows_the_files(tmp_path):
    file = write(tmp_path / "a.txt", "one")
    prints = [fingerprint(text_files([str(file)]))]
    write(file, "three")
    prints.append(fingerprint(text_files([str(file)])))
    prints.append(fingerprint(text_files([str(file), str(write(tmp_path / "b.txt", ""))])))
    assert len(set(prints)) == 3
    assert fingerprint(text_files([str(file)])) == prints[1]
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))  # as when a text of the same length is written
    assert fingerprint(text_files([str(file)])) != prints[1]


def test_bytes_read_add_up_to_the_files(tmp_path):
    write(tmp_path / "a.txt", "caf\u00e9")
    write(tmp_path / "b.jsonl", '{"text": "caf\u00e9"}\n\n{"text": ""}\n')
    corpus = text_files([str(tmp_path)])
    assert sum(document.bytes_read for document in read_documents(corpus, Tally())) == num_bytes(corpus)


def test_batches_hold_at_most_as_many_bytes_as_asked_for(tmp_path):
    for name, size in (("a", 3), ("b", 3), ("c", 50), ("d", 1)):
        write(tmp_path / f"{name}.txt", "x" * size)
    found = batches(read_documents(text_files([str(tmp_path)]), Tally()), 6)
    assert [[len(document.text) for document in batch] for batch in found] == [[3, 3], [50], [1]]
