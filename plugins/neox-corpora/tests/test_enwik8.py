import hashlib
import http.server
import io
import json
import threading
import zipfile
from types import SimpleNamespace

import pytest
from attrs import evolve
from neox_author.testing import assert_light, load_only
from neox_corpora.download import download
from neox_corpora.enwik8 import ENWIK8, ENWIK9, Archive, Enwik8

from neox_core.errors import DataError

TEXT = "".join(f"<page>{number} caf\u00e9 \u6f22\u5b57</page>\n" for number in range(500)).encode()


@pytest.fixture
def server():
    """A local server: `content` is what it has, `asked` the ranges it was asked for; `breaks` after so many bytes."""
    state = SimpleNamespace(content=b"", asked=[], breaks=None, ranges=True, status=200)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            wanted = self.headers.get("Range")
            state.asked.append(wanted)
            first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and state.ranges else 0
            body = state.content[first:]
            self.send_response(206 if first else state.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.breaks])

        def log_message(self, *args): ...

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{listening.server_address[1]}/file"
    yield state
    listening.shutdown()
    listening.server_close()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def get(server, place, content):
    return download(server.url, place, len(content), sha256(content))


def test_listing_is_light():
    assert_light("neox-corpora")


def test_a_file_comes_whole_and_is_not_fetched_twice(server, tmp_path):
    server.content = bytes(range(256)) * 3000
    place = get(server, tmp_path / "a" / "file", server.content)
    assert place.read_bytes() == server.content
    get(server, place, server.content)
    assert server.asked == [None]
    assert [path.name for path in place.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_that_broke_off_goes_on(server, tmp_path, ranges):
    server.content, server.breaks = bytes(range(256)) * 3000, 300_001
    with pytest.raises(DataError, match=r"broke off after 300001 of 768000 bytes|cannot be downloaded") as raised:
        get(server, tmp_path / "file", server.content)
    assert "again to continue" in raised.value.hint
    assert not (tmp_path / "file").exists()
    server.breaks, server.ranges = None, ranges
    assert get(server, tmp_path / "file", server.content).read_bytes() == server.content
    assert server.asked == [None, "bytes=300001-"]


def test_another_file_is_refused_and_thrown_away(server, tmp_path):
    server.content = b"something else"
    with pytest.raises(DataError, match="is not the expected file"):
        get(server, tmp_path / "file", b"what was meant")
    assert not list(tmp_path.iterdir())
    server.content = b"what was meant, and much more"
    with pytest.raises(DataError, match="is not the expected file"):
        get(server, tmp_path / "file", b"what was meant")


def test_a_server_that_says_no_is_one_error(server, tmp_path):
    server.status = 404
    with pytest.raises(DataError, match="cannot be downloaded: Not Found"):
        get(server, tmp_path / "file", b"x")
    with pytest.raises(DataError, match="is neither http nor https"):
        download("file:///etc/passwd", tmp_path / "file", 1, "")
    with pytest.raises(DataError, match="cannot be downloaded"):
        download("http://127.0.0.1:9/file", tmp_path / "file", 1, "")


def test_the_documents_are_the_text(server, tmp_path, monkeypatch):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text", TEXT)
    server.content = packed.getvalue()
    monkeypatch.setattr(
        Enwik8,
        "archive",
        Archive(server.url, len(server.content), sha256(server.content), "text", sha256(TEXT), document_bytes=5000),
    )
    corpus = load_only("neox-corpora").registry.find("corpus", "enwik8").load()(None)
    (file,) = corpus.open(tmp_path).files
    texts = [json.loads(line)["text"] for line in file.read_text().splitlines()]
    assert "".join(texts).encode() == TEXT
    assert all(5000 <= len(text.encode()) < 5100 for text in texts[:-1])
    before = file.stat().st_mtime_ns
    assert corpus.open(tmp_path).files == (file,)
    assert file.stat().st_mtime_ns == before
    file.unlink()
    monkeypatch.setattr(Enwik8, "archive", evolve(Enwik8.archive, text_sha256=sha256(b"another")))
    with pytest.raises(DataError, match="holds another text than text"):
        corpus.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["text.zip"]
    monkeypatch.setattr(Enwik8, "archive", evolve(Enwik8.archive, member="missing"))
    (tmp_path / "text.zip").rename(tmp_path / "missing.zip")
    with pytest.raises(DataError, match="cannot be unpacked"):
        corpus.open(tmp_path)


@pytest.mark.parametrize("archive", [ENWIK8, ENWIK9])
def test_the_archive_is_named_by_its_hash(archive):
    assert archive.url.startswith("https://")
    assert len(bytes.fromhex(archive.sha256)) == len(bytes.fromhex(archive.text_sha256)) == 32
