"""The file of a vocabulary, a token on each line, read without the library that uses it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from neox_core.errors import DataError
from neox_core.files import open_file

if TYPE_CHECKING:
    from neox_bert.settings import WordPieceSettings

MOST_BYTES = 64 * 2**20


def num_ids(settings: WordPieceSettings) -> int:
    """The ids of a vocabulary, for the host. Raises ValueError for what is not one."""
    try:
        return len(lines_of(settings.vocab_file))
    except DataError as error:
        raise ValueError(error.message) from error


def lines_of(file: str) -> list[str]:
    """The tokens in order. Raises DataError for a file that is not there, or not a text of such a length."""
    try:
        with open_file(Path(file)) as opened:
            raw = opened.read(MOST_BYTES + 1)
    except FileNotFoundError:
        hint = "`neox data prepare` learns and writes one"
        raise DataError(f"{file}: no such file (vocab-file)", hint=hint) from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read (vocab-file): {error.strerror or error}") from error
    if len(raw) > MOST_BYTES:
        raise DataError(f"{file}: is longer than {MOST_BYTES} bytes, and no vocabulary")
    try:
        return raw.decode().splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{file}: is not UTF-8", hint="a vocab.txt of BERT has a token on each line") from None
