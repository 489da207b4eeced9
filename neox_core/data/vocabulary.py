"""How many rows a table of tokens has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neox_core.errors import ConfigError

if TYPE_CHECKING:
    from neox_core.plan.runfile import ModelPlan


def padded_vocab(plan: ModelPlan, tokenizer_vocab_size: int | None) -> int:
    """Rows of the embedding: `padded-vocab-size`, or the tokenizer's vocabulary rounded up to a multiple of
    `make-vocab-size-divisible-by` (50257 with 128 gives 50304).

    Raises ConfigError when neither is known, or when the tokenizer has more ids than rows were asked for.
    """
    if plan.padded_vocab_size is not None:
        if tokenizer_vocab_size is not None and tokenizer_vocab_size > plan.padded_vocab_size:
            raise ConfigError(
                f"padded-vocab-size {plan.padded_vocab_size} is smaller than the tokenizer's {tokenizer_vocab_size} ids"
            )
        return plan.padded_vocab_size
    if tokenizer_vocab_size is None:
        raise ConfigError("the size of the vocabulary is not known", hint="set tokenizer-type or padded-vocab-size")
    multiple = plan.make_vocab_size_divisible_by
    return -(-tokenizer_vocab_size // multiple) * multiple
