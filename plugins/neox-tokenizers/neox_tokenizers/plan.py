"""The number of ids of the tokenizers whose files tell it, without their libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neox_tokenizers.library_settings import HFSettings
    from neox_tokenizers.settings import BPESettings

MOST_BYTES = 256 * 2**20


def bpe(settings: BPESettings) -> int:
    """The size of the vocabulary in the file of a BPE tokenizer."""
    highest: int = max(_read(settings.vocab_file).values())
    return highest + 1


def hf(settings: HFSettings) -> int:
    """The size of the vocabulary in a tokenizer.json, added tokens included."""
    path = Path(settings.vocab_file)
    content = _read(path / "tokenizer.json" if path.is_dir() else path)
    vocab = content["model"]["vocab"]
    ids = list(vocab.values()) if isinstance(vocab, dict) else [len(vocab) - 1]  # of Unigram a list, in order
    highest: int = max([*ids, *(each["id"] for each in content.get("added_tokens", ()))])
    return highest + 1


def characters(settings: None) -> int:
    """The size of the vocabulary of characters."""
    return 512


def _read(file: str | Path) -> dict[str, Any]:
    """Raises OSError or ValueError for what is not there or not JSON."""
    path = Path(file)
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path} is not a file of {MOST_BYTES} bytes at most")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
