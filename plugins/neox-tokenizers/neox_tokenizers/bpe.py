"""GPT-2's byte-level BPE (Radford et al. 2019), with the files that GPT-2 and GPT-NeoX use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from neox_core.errors import DataError
from neox_tokenizers.base import END_OF_TEXT, LibraryTokenizer, require_file

if TYPE_CHECKING:
    from pathlib import Path

    from neox_tokenizers.settings import BPESettings

SMALLEST = 257  # one token a byte, and the end of a document


class GPT2BPETokenizer(LibraryTokenizer):
    """Lossless: every text comes back from its ids, for its bytes are all in the vocabulary.

    `<|endoftext|>` in a text is encoded like any other characters, as GPT-NeoX does.
    """

    def __init__(self, settings: BPESettings) -> None:
        require_file(settings.vocab_file, "vocab-file")
        require_file(settings.merge_file, "merge-file")
        try:
            model = models.BPE.from_file(settings.vocab_file, settings.merge_file)
        except Exception as error:  # the library raises plain Exception for whatever is wrong with its files
            raise DataError(
                f"{settings.vocab_file} and {settings.merge_file}: are not the vocabulary and merges of a BPE: {error}",
                hint="vocab.json and merges.txt must come from the same training",
            ) from error
        tokenizer = _byte_level(model)
        missing = set(pre_tokenizers.ByteLevel.alphabet()) - tokenizer.get_vocab().keys()
        if missing:
            raise DataError(
                f"{settings.vocab_file}: is not a byte-level vocabulary: {len(missing)} of 256 bytes are missing"
            )
        super().__init__(tokenizer, settings.vocab_file)

    @classmethod
    def train(cls, texts: Iterator[str], vocab_size: int, folder: Path) -> dict[str, str]:
        """Learn `vocab_size` tokens, fewer where the texts hold fewer pairs; see neox_data.api.TrainableTokenizer."""
        if vocab_size < SMALLEST:
            raise DataError(f"a byte-level vocabulary has at least {SMALLEST} tokens, not {vocab_size}")
        tokenizer = _byte_level(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=2,
            show_progress=False,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
        tokenizer.train_from_iterator(texts, trainer)
        try:
            tokenizer.model.save(str(folder))
        except Exception as error:  # as above, also for a full disk
            raise DataError(f"{folder}: cannot be written: {error}") from error
        return {"vocab_file": "vocab.json", "merge_file": "merges.txt"}


def _byte_level(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
