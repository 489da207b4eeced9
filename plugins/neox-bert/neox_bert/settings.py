"""The settings of the objective and of the tokenizers."""

from typing import Literal

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting


@frozen
class MaskedLMSettings:
    """Samples of sentences of which some tokens are hidden."""

    sentence_pairs: Literal["next-sentence", "order", "none"] = setting(
        "next-sentence",
        help="What the head on the first token learns of two pieces of text: whether the second follows the first or "
        "is from elsewhere (arXiv:1810.04805), whether they are in their order (arXiv:1909.11942), or nothing.",
    )
    mask_prob: float = setting(
        0.15,
        help="Share of the tokens of a sample that are predicted; of these, 80 % are hidden, 10 % become another "
        "token, and 10 % stay. At least one token of a sample is predicted.",
        check=v.and_(v.gt(0), v.le(1)),
        aliases=("masked_lm_prob",),
        origin="megatron",
    )
    short_seq_prob: float = setting(
        0.1,
        help="Share of the samples that are made shorter than seq-length on purpose.",
        check=v.and_(v.ge(0), v.le(1)),
        origin="megatron",
    )


@frozen
class WordPieceSettings:
    """The file of a vocabulary."""

    vocab_file: str = setting(help="Path of BERT's vocab.txt: a token on each line.", file=True, origin="megatron")
