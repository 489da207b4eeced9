"""SentencePiece models (Kudo & Richardson 2018, arXiv:1808.06226)."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from neox_core.errors import DataError
from neox_tokenizers.base import library, require_file

if TYPE_CHECKING:
    from pathlib import Path

    from neox_tokenizers.library_settings import SentencePieceSettings

LONGEST_LINE = 1 << 16  # bytes; the library leaves longer ones out of a training


class SPMTokenizer:
    """A `.model` file. Whether a text comes back unchanged depends on the normalisation that it was trained with.

    eod: the model's end of sentence.
    """

    def __init__(self, settings: SentencePieceSettings) -> None:
        spm = library("sentencepiece", "SPMTokenizer")
        require_file(settings.vocab_file, "vocab-file")
        try:
            self._model = spm.SentencePieceProcessor(model_file=settings.vocab_file)
        except (RuntimeError, OSError) as error:
            raise DataError(f"{settings.vocab_file}: is not a SentencePiece model: {error}") from error
        self.vocab_size: int = self._model.get_piece_size()
        self.eod: int = self._model.eos_id()
        if self.eod < 0:
            raise DataError(
                f"{settings.vocab_file}: has no end of sentence, which ends a document", hint="train it with an eos_id"
            )

    @classmethod
    def train(cls, texts: Iterator[str], vocab_size: int, folder: Path) -> dict[str, str]:
        """Learn a unigram model with a fallback to bytes, which changes no text: neox_data.api.TrainableTokenizer."""
        spm = library("sentencepiece", "SPMTokenizer")
        model = io.BytesIO()
        try:
            spm.SentencePieceTrainer.train(
                sentence_iterator=(line for text in texts for line in text.splitlines()),
                model_writer=model,
                vocab_size=vocab_size,
                max_sentence_length=LONGEST_LINE,
                hard_vocab_limit=False,
                byte_fallback=True,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                add_dummy_prefix=False,
                user_defined_symbols=["\n"],
                num_threads=1,
                minloglevel=2,
            )
        except (RuntimeError, OSError) as error:
            raise DataError(f"SentencePiece learns no {vocab_size} pieces from this text: {error}") from error
        (folder / "tokenizer.model").write_bytes(model.getvalue())
        return {"vocab_file": "tokenizer.model"}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._model.encode(text, out_type=int)
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        ids: Any = self._model.encode(list(texts), out_type=int) if texts else []
        return list(ids)

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self._model.decode(list(ids))
        return text
