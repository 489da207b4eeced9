import json
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neox_author.testing import assert_light, build, check_data_backend, load_only
from neox_data_indexed.layout import dtype_for
from neox_data_indexed.mmap import MmapBackend

from neox_core.errors import DataError

REFERENCE = Path(__file__).parent / "data"
CASES = {"mmap_uint16": 50257, "mmap_int32": 100_000, "mmap_sentences": 50257}


@pytest.fixture
def backend() -> MmapBackend:
    entry = load_only("neox-data-indexed").registry.find("data backend", "mmap")
    return entry.load()(build(entry))


@pytest.fixture
def copy(tmp_path):
    """A copy of the uint16 reference, to be damaged."""
    for suffix in (".bin", ".idx"):
        (tmp_path / f"copy{suffix}").write_bytes((REFERENCE / f"mmap_uint16{suffix}").read_bytes())
    return tmp_path / "copy"


def tokens_of(name: str) -> list[list[list[int]]]:
    return json.loads((REFERENCE / f"{name}.tokens.json").read_text())


def test_listing_is_light():
    assert_light("neox-data-indexed")


@pytest.mark.parametrize("warm_up", [False, True])
def test_keeps_the_contract(warm_up):
    check_data_backend(load_only("neox-data-indexed"), "mmap", mmap_warmup=warm_up)


@pytest.mark.parametrize("name", CASES)
def test_reads_what_gpt_neox_wrote(backend, name):
    documents = tokens_of(name)
    source = backend.open(REFERENCE / name)
    assert backend.recognises(REFERENCE / name)
    assert source.dtype == (np.int32 if name == "mmap_int32" else np.uint16)
    sentences = [source.read(index).tolist() for index in range(len(source.sizes))]
    assert sentences == [sentence for document in documents for sentence in document]
    assert [sentences[a:b] for a, b in zip(source.bounds, source.bounds[1:], strict=False)] == documents


@pytest.mark.parametrize("name", CASES)
def test_writes_the_bytes_that_gpt_neox_wrote(backend, tmp_path, name):
    writer = backend.create(tmp_path / name, CASES[name])
    for sentences in tokens_of(name):
        writer.add_document([token for sentence in sentences for token in sentence], [len(s) for s in sentences])
    writer.close()
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"{name}{suffix}").read_bytes() == (REFERENCE / f"{name}{suffix}").read_bytes()


def test_integer_type_is_chosen_as_gpt_neox_does():
    assert [dtype_for(size) for size in (1, 65499, 65500, 2**31 - 1)] == [np.uint16, np.uint16, np.int32, np.int32]


@given(documents=st.lists(st.lists(st.integers(0, 69_999), max_size=40), max_size=20), vocab_size=st.just(70_000))
@settings(deadline=None, max_examples=50)
def test_any_documents_come_back(tmp_path_factory, documents, vocab_size):
    prefix = tmp_path_factory.mktemp("any") / "tokens"
    backend = MmapBackend(build(load_only("neox-data-indexed").registry.find("data backend", "mmap")))
    writer = backend.create(prefix, vocab_size)
    for document in documents:
        writer.add_document(document)
    writer.close()
    source = backend.open(prefix)
    assert [source.read(index).tolist() for index in range(len(source.sizes))] == documents


def header(magic=b"MMIDIDX\x00\x00", version=1, code=8) -> bytes:
    return struct.pack("<9sQB", magic, version, code)


@pytest.mark.parametrize(
    ("suffix", "damage", "says"),
    [
        (".idx", lambda raw: None, "no such file"),
        (".bin", lambda raw: None, "no such file"),
        (".idx", lambda raw: b"", "not the index of an mmap dataset"),
        (".idx", lambda raw: raw[:20], "ends within its header"),
        (".idx", lambda raw: raw[:-1], "its header needs"),
        (".idx", lambda raw: raw + b"\0", "its header needs"),
        (".idx", lambda raw: header(magic=b"MMIDIDY\x00\x00") + raw[18:], "not the index of an mmap dataset"),
        (".idx", lambda raw: header(version=2) + raw[18:], "has version 2"),
        (".idx", lambda raw: header(code=6) + raw[18:], "float32"),
        (".idx", lambda raw: header(code=9) + raw[18:], "unknown dtype code 9"),
        (".idx", lambda raw: header(code=4) + raw[18:], "does not start where the last one ends"),
        (".idx", lambda raw: raw[:34] + struct.pack("<i", -5) + raw[38:], "document 0 does not start"),
        (".bin", lambda raw: raw[:-2], "needs 2834"),
        (".bin", lambda raw: raw + b"\0\0", "needs 2834"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(backend, copy, suffix, damage, says):
    file = copy.with_suffix(suffix)
    damaged = damage(file.read_bytes())
    if damaged is None:
        file.unlink()
    else:
        file.write_bytes(damaged)
    with pytest.raises(DataError, match=says) as raised:
        backend.open(copy)
    assert str(file) in str(raised.value)
    assert raised.value.hint
    assert raised.value.exit_code == 4


def test_a_path_that_is_no_prefix_gets_a_hint(backend, tmp_path, copy):
    for path, hint in ((copy.with_suffix(".bin"), "remove .bin"), (tmp_path, f"in it there is {copy}")):
        with pytest.raises(DataError) as raised:
            backend.open(path)
        assert hint in raised.value.hint
    (tmp_path / "texts").mkdir()
    with pytest.raises(DataError) as raised:
        backend.open(tmp_path / "texts")
    assert "data-impl: text" in raised.value.hint


def test_the_older_format_is_refused_by_name(backend):
    assert not backend.recognises(REFERENCE / "lazy")
    with pytest.raises(DataError, match=r"lazy\.idx: has the older `lazy`/`cached` format") as raised:
        backend.open(REFERENCE / "lazy")
    assert "data-impl to lazy" in raised.value.hint


def test_no_object_can_hide_in_a_dataset():
    sources = (Path(sys.modules["neox_data_indexed.mmap"].__file__).parent).glob("*.py")
    assert not [path for path in sources if "pickle" in path.read_text() or "np.load" in path.read_text()]


@pytest.mark.parametrize("span", [(0, 43), (42, 1), (-1, 2), (3, -1)])
def test_reading_beyond_a_document_is_refused(backend, span):
    with pytest.raises(IndexError, match="document 0 has 42 tokens"):
        backend.open(REFERENCE / "mmap_uint16").read(0, *span)


def test_a_document_that_is_not_there_is_refused(backend):
    for document in (-1, 40):
        with pytest.raises(IndexError, match=f"no document {document}, there are 40"):
            backend.open(REFERENCE / "mmap_uint16").read(document)


def test_two_writers_of_one_dataset_are_refused(backend, tmp_path):
    first = backend.create(tmp_path / "tokens", 1000)
    with pytest.raises(DataError, match="another process is writing it"):
        backend.create(tmp_path / "tokens", 1000)
    first.add_document([1, 2, 3])
    first.close()
    assert backend.open(tmp_path / "tokens").read(0).tolist() == [1, 2, 3]


def test_a_killed_writer_leaves_no_dataset_and_is_no_obstacle(backend, tmp_path):
    code = """
import os, signal, sys
from pathlib import Path
from neox_data_indexed.mmap import MmapBackend
from neox_data_indexed.settings import IndexedSettings
writer = MmapBackend(IndexedSettings()).create(Path(sys.argv[1]), 1000)
for _ in range(20000):
    writer.add_document(range(100))
os.kill(os.getpid(), signal.SIGKILL)
"""
    prefix = tmp_path / "tokens"
    done = subprocess.run([sys.executable, "-c", code, str(prefix)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tokens.bin.partial", ".tokens.sizes.partial"]
    assert not backend.recognises(prefix)
    writer = backend.create(prefix, 1000)
    writer.add_document([7])
    writer.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokens.bin", "tokens.idx"]
    assert backend.open(prefix).read(0).tolist() == [7]


def test_writing_takes_constant_memory(tmp_path):
    code = """
import resource, sys
from pathlib import Path
import numpy as np
from neox_data_indexed.mmap import MmapBackend
from neox_data_indexed.settings import IndexedSettings
writer = MmapBackend(IndexedSettings()).create(Path(sys.argv[1]), 1000)
for size, count in ((1, 1000), (1, 200_000), (1_000_000, 60)):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    document = np.ones(size, dtype=np.uint16)
    for _ in range(count):
        writer.add_document(document)
writer.close()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "t")], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 60_000, "KiB more for 120 MB of tokens, 2 MB a document"


def test_a_full_disk_is_one_error(tmp_path):
    code = """
import resource, signal, sys
from pathlib import Path
from neox_core.errors import DataError
from neox_data_indexed.mmap import MmapBackend
from neox_data_indexed.settings import IndexedSettings
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
writer = MmapBackend(IndexedSettings()).create(Path(sys.argv[1]), 1000)
try:
    for _ in range(100):
        writer.add_document([1] * 10_000)
except DataError as error:
    writer.abort()
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "t")], check=True, capture_output=True, text=True)
    assert "cannot be written: File too large" in done.stdout
    assert not list(tmp_path.iterdir())


def test_more_documents_than_are_handled_at_once(backend, tmp_path, monkeypatch):
    monkeypatch.setattr("neox_data_indexed.writer.COPIED_AT_ONCE", 3)
    monkeypatch.setattr("neox_data_indexed.mmap.CHECKED_AT_ONCE", 4)
    documents = [[number] * (number % 5) for number in range(100)]
    writer = backend.create(tmp_path / "tokens", 1000)
    for document in documents:
        writer.add_document(document)
    writer.close()
    source = backend.open(tmp_path / "tokens")
    assert [source.read(index).tolist() for index in range(100)] == documents


def test_a_kill_between_the_two_files_leaves_no_mixture_of_old_and_new(backend, tmp_path):
    code = """
import os, signal, sys
from pathlib import Path
from neox_data_indexed.mmap import MmapBackend
from neox_data_indexed.settings import IndexedSettings
prefix = Path(sys.argv[1])
backend = MmapBackend(IndexedSettings())
def write(*documents):
    writer = backend.create(prefix, 1000)
    for document in documents:
        writer.add_document(document)
    writer.close()
write([1, 2, 3], [4])
replace = Path.replace
def replace_one(self, target):
    replace(self, target)
    os.kill(os.getpid(), signal.SIGKILL)
Path.replace = replace_one
write([5], [6, 7, 8])
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "tokens")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not backend.recognises(tmp_path / "tokens")
    with pytest.raises(DataError, match="no such file"):
        backend.open(tmp_path / "tokens")


@pytest.mark.parametrize(("code", "dtype"), [(1, "u1"), (2, "i1"), (3, "<i2"), (4, "<i4"), (5, "<i8"), (8, "<u2")])
def test_every_integer_type_is_read(backend, tmp_path, code, dtype):
    documents = [np.array([1, 2, 3], dtype=dtype), np.array([100], dtype=dtype)]
    width = documents[0].itemsize
    (tmp_path / "t.bin").write_bytes(b"".join(document.tobytes() for document in documents))
    index = header(code=code) + struct.pack("<QQ", 2, 3) + struct.pack("<2i", 3, 1)
    (tmp_path / "t.idx").write_bytes(index + struct.pack("<2q", 0, 3 * width) + struct.pack("<3q", 0, 1, 2))
    source = backend.open(tmp_path / "t")
    assert [source.read(index).tolist() for index in range(2)] == [[1, 2, 3], [100]]
    assert source.dtype == np.dtype(dtype)


def test_a_writer_goes_on_where_another_was_killed(backend, tmp_path):
    code = """
import json, os, signal, sys
from pathlib import Path
from neox_data_indexed.mmap import MmapBackend
from neox_data_indexed.settings import IndexedSettings
writer = MmapBackend(IndexedSettings()).create(Path(sys.argv[1]), 1000)
for number in range(5000):
    writer.add_document([number % 1000] * (number % 7))
    if number == 2999:
        print(json.dumps(writer.checkpoint()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    prefix = tmp_path / "tokens"
    done = subprocess.run([sys.executable, "-c", code, str(prefix)], check=False, capture_output=True, text=True)
    resumed, whole = backend.resume(prefix, 1000, json.loads(done.stdout)), backend.create(tmp_path / "whole", 1000)
    for number in range(5000):
        whole.add_document([number % 1000] * (number % 7))
        if number >= 3000:
            resumed.add_document([number % 1000] * (number % 7))
    for writer in (resumed, whole):
        writer.close()
    for suffix in (".bin", ".idx"):
        assert prefix.with_suffix(suffix).read_bytes() == (tmp_path / "whole").with_suffix(suffix).read_bytes()


def test_what_was_left_behind_and_has_shrunk_since_is_no_beginning(backend, tmp_path):
    writer = backend.create(tmp_path / "tokens", 1000)
    writer.add_document([1, 2, 3])
    position = writer.checkpoint()
    writer.leave()
    (tmp_path / ".tokens.bin.partial").write_bytes(b"")
    with pytest.raises(DataError, match="ends before byte 6") as raised:
        backend.resume(tmp_path / "tokens", 1000, position)
    assert "--resume" in raised.value.hint


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_file_that_cannot_be_read_is_said(backend, copy, suffix):
    file = copy.with_suffix(suffix)
    file.unlink()
    file.mkdir()
    with pytest.raises(DataError, match=r"cannot be read|has \d+ bytes") as raised:
        backend.open(copy)
    assert str(file) in str(raised.value)
