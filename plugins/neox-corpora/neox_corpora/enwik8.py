"""enwik8 and enwik9, the texts of the Hutter Prize (Mahoney, mattmahoney.net/dc/textdata.html)."""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen
from neox_data.api import Corpus

from neox_core.errors import DataError
from neox_core.files import replacing
from neox_corpora.download import download


@frozen
class Archive:
    """A .zip with one text. text_sha256: of the text. document_bytes: approximate length of the documents into which it
    is split, at ends of lines.
    """

    url: str
    num_bytes: int
    sha256: str
    member: str
    text_sha256: str
    document_bytes: int = 1_000_000


ENWIK8 = Archive(
    url="https://mattmahoney.net/dc/enwik8.zip",
    num_bytes=36_445_475,
    sha256="547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
    member="enwik8",
    text_sha256="2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
)


ENWIK9 = Archive(
    url="https://mattmahoney.net/dc/enwik9.zip",
    num_bytes=322_592_222,
    sha256="99cdb5ac84392252d3f0912ccedd195bc95bd80cbef3b0cdf2eee4ad9a3b7a51",
    member="enwik9",
    text_sha256="159b85351e5f76e60cbe32e04c677847a9ecba3adc79addab6f4c6c7aa3744bc",
)


class Enwik8:
    """enwik8: the documents, one after the other, are the text byte by byte."""

    archive = ENWIK8

    def __init__(self, settings: None) -> None: ...

    def open(self, folder: Path) -> Corpus:
        """One .jsonl file in `folder`, written unless it exists. Raises DataError when it cannot be obtained."""
        packed = download(self.archive.url, folder / f"{self.archive.member}.zip", *self._identity())
        place = folder / f"{self.archive.member}.jsonl"
        if place.exists() and place.stat().st_mtime_ns > packed.stat().st_mtime_ns:
            return Corpus((place,))
        try:
            with replacing(place) as new, new.open("w", encoding="utf-8") as file:
                for text in self._documents(packed):
                    file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        except OSError as error:
            raise DataError(f"{place}: cannot be written: {error.strerror or error}") from error
        return Corpus((place,))

    def _identity(self) -> tuple[int, str]:
        return self.archive.num_bytes, self.archive.sha256

    def _documents(self, packed: Path) -> Iterator[str]:
        held, known = b"", hashlib.sha256()
        try:
            with zipfile.ZipFile(packed) as archive, archive.open(self.archive.member) as text:
                for line in text:
                    known.update(line)
                    held += line
                    if len(held) >= self.archive.document_bytes:
                        yield held.decode("utf-8")
                        held = b""
        except (zipfile.BadZipFile, KeyError, zlib.error) as error:
            raise DataError(f"{packed}: cannot be unpacked: {error}") from error
        if known.hexdigest() != self.archive.text_sha256:
            raise DataError(f"{packed}: holds another text than {self.archive.member}: its SHA-256 differs")
        if held:
            yield held.decode("utf-8", errors="replace")  # the text ends within a character


class Enwik9(Enwik8):
    """enwik9, whose first tenth is enwik8."""

    archive = ENWIK9
