"""GPT-NeoX's character level: an id for each byte of the UTF-8 text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

BYTES = 256


class CharLevelTokenizer:
    """Lossless, but for the character U+0000, whose byte is the id that ends a document.

    vocab_size: 512, as in GPT-NeoX; ids from 256 on never occur. eod: 0.
    """

    vocab_size = 512
    eod = 0

    def __init__(self, settings: None) -> None: ...

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(token for token in ids if token < BYTES).decode("utf-8", errors="replace")
