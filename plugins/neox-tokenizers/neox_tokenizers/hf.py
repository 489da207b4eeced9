"""Any tokenizer that the `tokenizers` library can read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from neox_core.errors import DataError
from neox_tokenizers.base import LibraryTokenizer, require_file

if TYPE_CHECKING:
    from neox_tokenizers.library_settings import HFSettings


class HFTokenizer(LibraryTokenizer):
    """A `tokenizer.json`. Whether a text comes back unchanged depends on the normalizer that the file asks for."""

    def __init__(self, settings: HFSettings) -> None:
        path = Path(settings.vocab_file)
        file = str(path / "tokenizer.json" if path.is_dir() else path)
        require_file(file, "vocab-file")
        try:
            tokenizer = Tokenizer.from_file(file)
        except Exception as error:  # the library raises plain Exception for whatever is wrong with its file
            raise DataError(f"{file}: is not a tokenizer.json: {error}") from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        super().__init__(tokenizer, file, settings.eod_token)
