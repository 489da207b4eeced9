import json
import struct
from pathlib import Path

import numpy as np
import pytest
from neox_author.testing import build, check_data_backend, load_only

from neox_core.errors import DataError

REFERENCE = Path(__file__).parent / "data"
KINDS = ("lazy", "cached")


def backend_of(kind, **settings):
    entry = load_only("neox-data-indexed").registry.find("data backend", kind)
    return entry.load()(build(entry, **settings))


@pytest.fixture
def copy(tmp_path):
    """A copy of the reference, to be damaged."""
    for suffix in (".bin", ".idx"):
        (tmp_path / f"copy{suffix}").write_bytes((REFERENCE / f"lazy{suffix}").read_bytes())
    return tmp_path / "copy"


@pytest.mark.parametrize("kind", KINDS)
def test_keeps_the_contract(kind):
    check_data_backend(load_only("neox-data-indexed"), kind)


@pytest.mark.parametrize("warm_up", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_reads_what_gpt_neox_wrote(kind, warm_up):
    documents = json.loads((REFERENCE / "lazy.tokens.json").read_text())
    backend = backend_of(kind, mmap_warmup=warm_up)
    source = backend.open(REFERENCE / "lazy")
    assert backend.recognises(REFERENCE / "lazy")
    assert source.dtype == np.int32
    sentences = [source.read(index).tolist() for index in range(len(source.sizes))]
    assert sentences == [sentence for document in documents for sentence in document]
    assert [sentences[a:b] for a, b in zip(source.bounds, source.bounds[1:], strict=False)] == documents


@pytest.mark.parametrize("kind", KINDS)
def test_writes_the_bytes_that_gpt_neox_wrote(kind, tmp_path):
    writer = backend_of(kind).create(tmp_path / "lazy", 50257)
    for sentences in json.loads((REFERENCE / "lazy.tokens.json").read_text()):
        writer.add_document([token for sentence in sentences for token in sentence], [len(s) for s in sentences])
    writer.close()
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"lazy{suffix}").read_bytes() == (REFERENCE / f"lazy{suffix}").read_bytes()


def header(magic=b"TNTIDX\0\0", version=1, code=4, width=4, sequences=20, sizes=20, bounds=21) -> bytes:
    return struct.pack("<8s6Q", magic, version, code, width, sequences, sizes, bounds)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("suffix", "damage", "says"),
    [
        (".idx", lambda raw: b"", "not the index of a lazy dataset"),
        (".idx", lambda raw: b"MMIDIDX\0\0" + raw, "has the mmap format"),
        (".idx", lambda raw: raw[:30], "ends within its header"),
        (".idx", lambda raw: raw[:-8], "its header needs"),
        (".idx", lambda raw: header(version=2) + raw[56:], "has version 2"),
        (".idx", lambda raw: header(code=7, width=8) + raw[56:], "float64"),
        (".idx", lambda raw: header(code=9) + raw[56:], "unknown dtype code 9"),
        (".idx", lambda raw: header(width=2) + raw[56:], "contradicts itself"),
        (".idx", lambda raw: header(sequences=2**60, sizes=2**60) + raw[56:], "its header needs"),
        (".idx", lambda raw: raw[:64] + bytes(8) + raw[72:], "do not have one dimension"),
        (".idx", lambda raw: raw[:232] + bytes(8) + raw[240:], "document 0 does not start"),
        (".bin", lambda raw: raw[:-4], "needs 2404"),
        (".bin", lambda raw: raw + bytes(4), "needs 2404"),
        (".bin", lambda raw: None, "no such file"),
        (".idx", lambda raw: None, "no such file"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(kind, copy, suffix, damage, says):
    file = copy.with_suffix(suffix)
    damaged = damage(file.read_bytes())
    if damaged is None:
        file.unlink()
    else:
        file.write_bytes(damaged)
    with pytest.raises(DataError, match=says) as raised:
        backend_of(kind).open(copy)
    assert str(file) in str(raised.value)
    assert raised.value.hint


def test_a_file_that_shrinks_while_it_is_read_is_said(copy):
    source = backend_of("lazy").open(copy)
    copy.with_suffix(".bin").write_bytes(b"\0\0")
    with pytest.raises(DataError, match="ends within the tokens"):
        source.read(3)


@pytest.mark.parametrize("kind", KINDS)
def test_reading_beyond_a_document_is_refused(kind):
    source = backend_of(kind).open(REFERENCE / "lazy")
    with pytest.raises(IndexError, match="document 0 has 29 tokens"):
        source.read(0, 28, 2)
    with pytest.raises(IndexError, match="no document 20, there are 20"):
        source.read(20)
