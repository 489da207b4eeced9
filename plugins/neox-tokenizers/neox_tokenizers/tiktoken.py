"""Byte-pair encodings of the library tiktoken."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_core.errors import DataError
from neox_tokenizers.base import END_OF_TEXT, library

if TYPE_CHECKING:
    from neox_tokenizers.library_settings import TiktokenSettings


class TiktokenTokenizer:
    """An encoding that tiktoken knows by name, which it downloads when it is used first, or a `.tiktoken` file.

    Lossless. `<|endoftext|>` in a text is encoded like any other characters, so no text can end a document.
    """

    def __init__(self, settings: TiktokenSettings) -> None:
        tiktoken = library("tiktoken", "TiktokenTokenizer")
        path = Path(settings.vocab_file)
        if path.is_file():
            self._encoding = _read(tiktoken, path, settings.tiktoken_pattern)
        elif settings.vocab_file in tiktoken.list_encoding_names():
            try:
                self._encoding = tiktoken.get_encoding(settings.vocab_file)
            except (OSError, ValueError) as error:  # of the network
                raise DataError(
                    f"{settings.vocab_file}: cannot be downloaded (vocab-file): {error}",
                    hint="give the path of a .tiktoken file, or set TIKTOKEN_CACHE_DIR to where it is cached",
                ) from error
        else:
            known = ", ".join(tiktoken.list_encoding_names())
            raise DataError(f"{settings.vocab_file}: no such file (vocab-file)", hint=f"nor a known encoding: {known}")
        self.vocab_size: int = self._encoding.n_vocab
        self.eod: int = self._encoding.eot_token

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._encoding.encode_ordinary(text)
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = self._encoding.encode_ordinary_batch(list(texts))
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self._encoding.decode(list(ids))
        return text


def _read(tiktoken: Any, path: Path, pattern: str | None) -> Any:
    """An encoding from lines of `base64(token) rank`; pattern None: GPT-2's."""
    from tiktoken_ext.openai_public import r50k_pat_str

    try:
        pairs = [line.split() for line in path.read_bytes().splitlines() if line]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except (OSError, ValueError, binascii.Error) as error:
        raise DataError(f"{path}: is not a .tiktoken file (vocab-file): {error}") from error
    missing = sum(bytes([byte]) not in ranks for byte in range(256))
    if missing:
        raise DataError(f"{path}: is not a byte-level vocabulary: {missing} of 256 bytes are missing")
    try:
        return tiktoken.Encoding(
            path.stem,
            pat_str=pattern or r50k_pat_str,
            mergeable_ranks=ranks,
            special_tokens={END_OF_TEXT: max(ranks.values()) + 1},
        )
    except ValueError as error:
        raise DataError(f"{path}: cannot be used with tiktoken-pattern {pattern!r}: {error}") from error
