"""What an encoder and masked-lm do not take, said before the start."""

from collections.abc import Iterator
from typing import Any

from neox_bert.section import SPECIAL, EncoderSection
from neox_bert.settings import MaskedLMSettings
from neox_core.api import Problem

NAME, OBJECTIVE = "bert", "masked-lm"
_ONE_TEXT = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")


def problems(config: Any) -> Iterator[Problem]:
    """Of a config that chooses the encoder or its objective."""
    (architecture,), (objective,) = config.components("architecture"), config.components("objective")
    encoder = architecture.entry.component.name == NAME
    if isinstance(objective.settings, MaskedLMSettings):
        if not encoder:
            hint = "set architecture: bert, or remove objective"
            yield config.problem("needs an encoder, whose tokens see those after them", "objective", hint)
        yield from _of_samples(config, objective.settings)
        if encoder:
            yield from _of_pairs(config, objective.settings)
    if encoder:
        yield from encoder_problems(config)
        if config.value("use_bias_in_head"):
            message = "the logits of an encoder always have a bias, transform.out_bias"
            yield config.problem(message, "use_bias_in_head", "remove it")
        if objective.entry.component.name == "causal-lm":
            message = "causal-lm predicts the next token, which an encoder sees"
            yield config.problem(message, "objective", "set objective: masked-lm")


def encoder_problems(config: Any) -> Iterator[Problem]:
    """What an encoder does not take, whatever is made of its states."""
    if config.value("sequence_parallel"):
        yield config.problem("an encoder does not take it: the first token has a head of its own", "sequence_parallel")
    for key in _ONE_TEXT:
        if config.value(key):
            yield config.problem("is for samples of several documents, which an encoder does not get", key, "remove it")
    if config.value("sample_prompt") is not None:
        yield config.problem("an encoder does not continue a text", "sample_prompt", "remove it")
    if config.value("sliding_window_width") is not None:
        message = "an encoder does not have sliding windows"
        hint = "remove it; sparsity: all with sparse_attention: {mode: bslongformer} has windows on both sides"
        yield config.problem(message, "sliding_window_width", hint)
    if config.value("tokenizer_type") is None:
        for name in SPECIAL:
            if config.value(f"{name}_token_id") is None:
                message = f"is required without a tokenizer, which would have [{name.upper()}]"
                yield config.problem(message, f"{name}_token_id", "set it, or tokenizer-type")
    ids = [config.value(f"{name}_token_id") for name in SPECIAL]
    known = [each for each in ids if each is not None]
    if len({*known}) < len(known):
        yield config.problem("two of the special tokens have the same id", "cls_token_id", "give each its own")


def _of_samples(config: Any, settings: MaskedLMSettings) -> Iterator[Problem]:
    least = 5 if settings.sentence_pairs != "none" else 3
    if config.value("seq_length") < least:
        yield config.problem(f"a sample of masked-lm has {least} tokens or more", "seq_length")


def _of_pairs(config: Any, settings: MaskedLMSettings) -> Iterator[Problem]:
    encoder, paired = config.section(EncoderSection), settings.sentence_pairs != "none"
    if paired and encoder.num_tokentypes < 2:
        yield config.problem("a sample has two pieces of text", "num_tokentypes", "set it to 2")
