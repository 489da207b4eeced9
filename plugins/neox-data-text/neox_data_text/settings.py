"""Settings of the backend."""

from attrs import frozen

from neox_core.api import setting


@frozen
class TextSettings:
    text_key: str = setting(
        "text", help="Member of each line of a .jsonl file, or column of a .parquet file, with text."
    )
    append_eod: bool = setting(True, help="End each document with the tokenizer's end-of-document token.")
