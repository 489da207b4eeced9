"""WordPiece (arXiv:1609.08144), with the files of BERT."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from neox_bert.vocabulary import lines_of
from neox_core.errors import DataError

if TYPE_CHECKING:
    from neox_bert.settings import WordPieceSettings

UNKNOWN = "[UNK]"
TOKENS = ("[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]")
"""Special tokens, with the ids 0 to 4 where a vocabulary is learnt, as in BERT's own order."""


class WordPiece:
    """Words in lower case or not, and their pieces. eod: [SEP]. A character that is in no piece becomes [UNK]."""

    lowercase = True

    def __init__(self, settings: WordPieceSettings) -> None:
        file = settings.vocab_file
        vocab = {line: at for at, line in enumerate(lines_of(file))}
        lacks = [each for each in TOKENS if each not in vocab]
        if lacks:
            raise DataError(f"{file}: has no {lacks[0]}", hint="a vocab.txt of BERT has a token on each line")
        self._tokenizer = _with(models.WordPiece(vocab, unk_token=UNKNOWN), lowercase=self.lowercase)
        self.vocab_size = max(vocab.values()) + 1
        self.eod: int = vocab["[SEP]"]

    @classmethod
    def train(cls, texts: Iterator[str], vocab_size: int, folder: Path) -> dict[str, str]:
        """Learn `vocab_size` tokens, fewer where the texts hold fewer."""
        tokenizer = _with(models.WordPiece(unk_token=UNKNOWN), lowercase=cls.lowercase)
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size, min_frequency=2, show_progress=False, special_tokens=[*TOKENS]
        )
        tokenizer.train_from_iterator(texts, trainer)
        lines = sorted((at, token) for token, at in tokenizer.get_vocab().items())
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for _, token in lines), encoding="utf-8")
        return {"vocab_file": "vocab.txt"}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [each.ids for each in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def to_json(self) -> str:
        """The text of a tokenizer.json."""
        text: str = self._tokenizer.to_str()
        return text


class CasedWordPiece(WordPiece):
    """Words as they are written."""

    lowercase = False


def _with(model: Any, *, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([each for each in TOKENS if model.token_to_id(each) is not None])
    return tokenizer
