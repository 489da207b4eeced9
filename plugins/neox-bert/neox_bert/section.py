"""The keys of an encoder beside those of a decoder."""

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting

SPECIAL = ("cls", "sep", "mask", "pad")
"""The special tokens: what begins a sample, ends each piece of text, hides a token, and fills a sample up."""


def _id(name: str, what: str) -> int | None:
    help_ = f"The id of the token that {what}. Default: that of [{name.upper()}] in the tokenizer."
    made: int | None = setting(None, help=help_, check=v.optional(v.ge(0)))
    return made


@frozen
class EncoderSection:
    """What an encoder has beside the keys of a decoder."""

    num_tokentypes: int = setting(
        2,
        help="Rows of the table of pieces of text, of which a sample may have so many; 1: no sample has two.",
        check=v.in_((1, 2)),
    )
    cls_token_id: int | None = _id("cls", "begins a sample")
    sep_token_id: int | None = _id("sep", "ends each piece of text in a sample")
    mask_token_id: int | None = _id("mask", "stands for a hidden one")
    pad_token_id: int | None = _id("pad", "fills a sample up, and which no other token sees")
