"""Settings of the tokenizers that are libraries."""

from attrs import frozen

from neox_core.api import setting


@frozen
class HFSettings:
    vocab_file: str = setting(
        help="Path of a tokenizer.json of the tokenizers library, or of a folder that holds one.",
        file=True,
        origin="gpt-neox",
    )
    eod_token: str = setting("<|endoftext|>", help="The token of it that ends a document.")


@frozen
class SentencePieceSettings:
    vocab_file: str = setting(help="Path of a .model file of SentencePiece.", file=True, origin="gpt-neox")


@frozen
class TiktokenSettings:
    vocab_file: str = setting(help="Name of an encoding of tiktoken, or path of a .tiktoken file.", origin="gpt-neox")
    tiktoken_pattern: str | None = setting(
        None, help="Regular expression that cuts text into words, for a .tiktoken file. Default: GPT-2's."
    )
