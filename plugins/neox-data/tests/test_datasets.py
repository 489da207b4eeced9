"""What is done with datasets that are there: merging, verifying, looking into them."""

import json
import multiprocessing
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from neox_author.testing import load_only
from neox_data.encode import Encoder
from neox_data.inspect import Shown, facts, histogram, inspect
from neox_data.manifest import note_files, write_json
from neox_data.merge import merge
from neox_data.verify import verify

from neox_core.data.records import read_json
from neox_core.errors import DataError, PluginError
from neox_core.hooks.component import path_of
from neox_core.plan.runfile import ComponentRef

REFERENCE = Path(__file__).parents[2] / "neox-data-indexed/tests/data"


def backend(name="mmap") -> ComponentRef:
    entry = load_only("neox-data-indexed").registry.find("data backend", name)
    settings = path_of(entry.component.settings)
    return ComponentRef("data backend", name, "x", "0", entry.component.target, settings, {"mmap_warmup": False})


LETTERS = ComponentRef("tokenizer", "letters", "x", "0", "letters:Letters")


@pytest.fixture(autouse=True)
def letters(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)


def write(prefix, documents, vocab_size=1000, name="mmap"):
    target, settings = backend(name).load()
    writer = target(settings).create(prefix, vocab_size)
    for document in documents:
        writer.add_document(document)
    writer.close()
    return prefix


def test_merging_makes_what_writing_at_once_would_have(tmp_path):
    one, two = [[1, 2, 3], [], [4]], [[5], [6, 7]]
    parts = [write(tmp_path / "one", one), write(tmp_path / "two", two), write(tmp_path / "old", one, name="lazy")]
    whole = write(tmp_path / "whole", [*one, *two])
    assert merge(parts[:2], [backend()] * 2, tmp_path / "all", backend()) == (5, 7)
    for suffix in (".bin", ".idx"):
        assert (tmp_path / "all").with_suffix(suffix).read_bytes() == whole.with_suffix(suffix).read_bytes()
    merge(parts[1:], [backend(), backend("lazy")], tmp_path / "wide", backend())
    target, settings = backend().load()
    source = target(settings).open(tmp_path / "wide")
    assert source.dtype == np.int32
    assert [source.read(index).tolist() for index in range(5)] == [*two, *one]


def test_a_merged_dataset_has_its_checksums(tmp_path):
    parts = [write(tmp_path / "one/d", [[1]]), write(tmp_path / "two/d", [[2]])]
    for _ in range(2):  # the second replaces the first
        merge(parts, [backend()] * len(parts), tmp_path / "all/d", backend())
        assert verify(tmp_path / "all/d", backend(), None, None).checksums == ("d.bin", "d.idx")
        assert "integrity: the index fits the tokens; files begin and end as prepared" in inspect(
            tmp_path / "all/d", backend(), None, Shown()
        )
        parts.append(write(tmp_path / "three/d", [[3]]))
    raw = (tmp_path / "all/d.bin").read_bytes()
    (tmp_path / "all/d.bin").write_bytes(raw[::-1])
    with pytest.raises(DataError, match="is not the file that was prepared"):
        merge([tmp_path / "all/d"], [backend()], tmp_path / "x", backend())


def test_what_was_prepared_is_not_up_to_date_when_a_merge_has_replaced_it(tmp_path):
    prepared = write(tmp_path / "all/d", [[1]])
    note_files([prepared.with_suffix(".bin"), prepared.with_suffix(".idx")], "letters")
    record = read_json(tmp_path / "all/prepared.json")
    write_json(tmp_path / "all/prepared.json", record | {"digest": "of what it was prepared from"})
    merge([write(tmp_path / "one/d", [[2]])], [backend()], tmp_path / "all/d", backend())
    assert "digest" not in read_json(tmp_path / "all/prepared.json")


def test_datasets_of_different_vocabularies_are_not_merged(tmp_path):
    parts = [write(tmp_path / name / "d", [[1]]) for name in ("one", "two")]
    for part in parts:
        note_files([part.with_suffix(".bin"), part.with_suffix(".idx")], part.parent.name)
    with pytest.raises(DataError, match=r"one/d and .*two/d were prepared with different vocabularies"):
        merge(parts, [backend()] * 2, tmp_path / "all", backend())
    copied = write(tmp_path / "two/copied", [[2]])  # of which the record in its folder tells nothing
    merge([parts[0], copied], [backend()] * 2, tmp_path / "all", backend())
    assert read_json(tmp_path / "prepared.json")["vocabulary"] == ""
    merge(parts[:1], [backend()], tmp_path / "same/d", backend())
    assert read_json(tmp_path / "same/prepared.json")["vocabulary"] == "one"


def test_merging_keeps_sentences_together(tmp_path):
    merge([REFERENCE / "mmap_sentences"], [backend()], tmp_path / "copy", backend())
    for suffix in (".bin", ".idx"):
        original = (REFERENCE / f"mmap_sentences{suffix}").read_bytes()
        assert (tmp_path / "copy").with_suffix(suffix).read_bytes() == original


def test_merging_into_one_of_them_is_refused(tmp_path):
    write(tmp_path / "one", [[1]])
    with pytest.raises(DataError, match="is one of those that are merged"):
        merge([tmp_path / "one"], [backend()], tmp_path / "x" / ".." / "one", backend())


def test_verifying_says_what_is_right(tmp_path):
    write(tmp_path / "t", [[1, 2, 999], [], [4]])
    lines = verify(tmp_path / "t", backend(), None, 1000).in_words().splitlines()
    assert lines[0].endswith("t: 3 documents, 4 tokens: whole")
    assert lines[1] == "ids: 0 to 999, all below 1000; 1 documents are empty"
    assert "none" in lines[2]


def test_verifying_finds_foreign_ids_and_changed_files(tmp_path):
    write(tmp_path / "t", [[1, 2], [3, 999, 4]])
    with pytest.raises(DataError, match="document 1, token 1: id 999 is not in a vocabulary of 999"):
        verify(tmp_path / "t", backend(), None, 999)
    with pytest.raises(DataError, match="id 999 is not in a vocabulary of 26"):
        verify(tmp_path / "t", backend(), LETTERS, None)
    (tmp_path / "prepared.json").write_text(json.dumps({"sha256": {"t.bin": "0" * 64}}))
    with pytest.raises(DataError, match=r"t\.bin: is not what was written"):
        verify(tmp_path / "t", backend(), None, None)


def test_verifying_finds_an_index_of_other_tokens(tmp_path):
    """Of the same length, which reading alone cannot tell."""
    write(tmp_path / "t", [[1, 2], [3, 4]])
    import hashlib

    sums = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("t.bin", "t.idx")}
    (tmp_path / "prepared.json").write_text(json.dumps({"sha256": sums}))
    assert verify(tmp_path / "t", backend(), None, None).checksums == ("t.bin", "t.idx")
    write(tmp_path / "u", [[1], [2, 3, 4]])
    (tmp_path / "u.idx").replace(tmp_path / "t.idx")
    with pytest.raises(DataError, match=r"t\.idx: is not what was written"):
        verify(tmp_path / "t", backend(), None, None)


@pytest.mark.parametrize("name", ["mmap", "lazy", "cached"])
@pytest.mark.parametrize(
    ("place", "value"), [(0, 1), (0, -1), (1, -1), (1, 2**62), (1, 4), (2, 0), (3, 4), (3, -(2**63))]
)
def test_verifying_finds_document_bounds_that_are_none(tmp_path, name, place, value):
    prefix = write(tmp_path / "a", [[1, 2], [3], [4, 5, 6]], name=name)
    index = tmp_path / "a.idx"
    content = bytearray(index.read_bytes())
    at = len(content) - 8 * (4 - place)
    content[at : at + 8] = struct.pack("<q", value)
    index.write_bytes(content)
    with pytest.raises(DataError, match=rf"bound {place} of its documents is {value}, and there are 3 sequences"):
        verify(prefix, backend(name), None, None)


def test_a_manifest_of_other_types_counts_as_none(tmp_path):
    prefix = write(tmp_path / "a", [[1, 2], [3]])
    for manifest in ('{"sha256": 5}', '{"sha256": {"a.bin": [1]}}', '{"edges": "x", "vocabulary": {}}', "[" * 90_000):
        (tmp_path / "prepared.json").write_text(manifest)
        assert "checksums: none" in verify(prefix, backend(), None, None).in_words()
        inspect(prefix, backend(), None, Shown())


def test_pipes_and_devices_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.idx")
    (tmp_path / "b.idx").symlink_to("/dev/zero")
    for name in ("mmap", "lazy", "cached"):
        for prefix in ("a", "b"):
            with pytest.raises(DataError, match="is not a regular file"):
                verify(tmp_path / prefix, backend(name), None, None)


def test_lengths_are_drawn():
    drawn = histogram(np.array([0, 1, 2, 3, 4, 4, 9]))
    counts = {line.split()[1]: int(line.split()[3]) for line in drawn}
    assert counts == {"0": 1, "1": 1, "2": 1, "4": 3, "8": 0, "16": 1}
    assert max(line.count("█") for line in drawn) == 40
    drawn = histogram(np.concatenate([np.ones(50, int), [2**20]]))
    assert len(drawn) == 12
    assert sum(int(line.split()[3]) for line in drawn) == 51


def test_samples_are_shown_by_their_documents_and_mask(tmp_path):
    write(tmp_path / "t", [[0, 1, 25], [2, 3, 4, 25], [5, 25]])
    shown = inspect(tmp_path / "t", backend(), LETTERS, Shown(samples=1, seq_length=8))
    pieces = [line for line in shown.splitlines() if line.startswith("  |")]
    assert sorted(pieces[1::2]) == ["  |   'ab.'", "  |   'cde.'", "  |   'f.'"]
    ends = [line.split(": ")[1] for line in shown.splitlines() if "eod-mask-loss leaves 2 of 8 out of the loss" in line]
    lengths = [int(line.split()[-2]) for line in pieces[::2]]
    assert ends == [f"what follows token {lengths[0] - 1}, {lengths[0] + lengths[1] - 1}"]


@pytest.mark.parametrize("text", ["die", "halt"])
def test_a_process_that_dies_while_encoding_is_one_clear_error(text):
    batches = [("a", ["abc", "z"]), ("b", ["b"]), ("c", [text]), ("d", ["d"])]
    with pytest.raises(DataError, match="a process that encodes text died") as raised:
        list(Encoder(LETTERS, workers=2).batches(batches))
    assert "--workers" in raised.value.hint
    assert not multiprocessing.active_children()


def test_what_a_tokenizer_raises_comes_back_and_ends_the_processes():
    for batches in ([("a", ["abc"]), ("b", ["fail"])], [("a", ["fail"])]):
        with pytest.raises(PluginError, match="tokenizer x:letters 0 failed: KeyError: 'what letters do not know'"):
            list(Encoder(LETTERS, workers=2).batches(batches))
        assert not multiprocessing.active_children()


def test_no_process_waits_for_one_that_takes_long(tmp_path, monkeypatch):
    """The first batch is finished by the last one, wherever that comes, and the order stays."""
    monkeypatch.setenv("RELEASED", str(tmp_path / "released"))
    texts = ["held", *"abcdefghijk", "release"]
    encoded = Encoder(LETTERS, workers=2).batches((text, [text]) for text in texts)
    assert [label for label, _ in encoded] == texts


def test_long_texts_and_answers_are_written_by_both_sides_at_once():
    """Each is more than a pipe holds, and more are under way than are read."""
    batches = [(number, ["abc" * 1_000_000]) for number in range(12)]
    encoded = Encoder(LETTERS, workers=2).batches(batches)
    assert [texts[0].ids.size for _, texts in encoded] == [3_000_000] * 12


def test_processes_that_are_writing_end_when_their_reader_leaves():
    """As on a full disk."""
    encoded = Encoder(LETTERS, workers=2).batches((number, ["abc" * 300_000]) for number in range(12))
    next(encoded)
    encoded.close()
    assert not multiprocessing.active_children()


def test_no_more_processes_start_than_there_are_batches():
    encoded = Encoder(LETTERS, workers=1000).batches([("a", ["abc"]), ("b", ["b"])])
    assert next(encoded)[0] == "a"
    assert len(multiprocessing.active_children()) == 2
    encoded.close()


def test_a_tokenizer_that_breaks_its_contract_is_named():
    reference = evolve(LETTERS, target="letters:Halves")
    with pytest.raises(PluginError, match=r"tokenizer x:letters 0: .*does not give a list of whole numbers"):
        list(Encoder(reference).batches([("label", ["a", "b"])]))


def test_encoding_keeps_the_order_and_mends_text():
    batches = [(number, [letter * number]) for number, letter in enumerate("abcdefghij")]
    for workers in (1, 2):
        found = [(label, texts[0].ids.tolist()) for label, texts in Encoder(LETTERS, workers).batches(batches)]
        assert found == [(number, [number] * number) for number in range(10)]
    mended = next(iter(Encoder(LETTERS, ftfy=True).batches([("x", ["ﬁx"])])))  # a ligature
    assert mended[1][0].ids.tolist() == [5, 8, 23]


def test_facts_for_programs(tmp_path):
    write(tmp_path / "t", [[1, 2, 3], [], [4]])
    got = facts(tmp_path / "t", backend(), LETTERS, Shown())
    assert json.loads(json.dumps(got)) == got
    assert (got["documents"], got["tokens"]) == (3, 4)
    assert got["document_tokens"] == {"least": 0, "most": 3, "median": 1.0}
    text = inspect(tmp_path / "t", backend(), LETTERS, Shown()).splitlines()[-1]
    assert got["document"] == {"number": 0, "tokens": 3, "first_ids": [1, 2, 3], "text": text}
    with pytest.raises(DataError, match="has no document 3"):
        facts(tmp_path / "t", backend(), None, Shown(document=3))
