"""Which keys of a config.json are understood: those that a family reads, and those that change no number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any

from neox_core.errors import ConfigError
from neox_core.untrusted import short

METADATA = frozenset(
    {
        "_name_or_path",
        "architectures",
        "auto_map",
        "bos_token_id",
        "cache_implementation",
        "classifier_dropout",
        "dtype",
        "eos_token_id",
        "finetuning_task",
        "gradient_checkpointing",
        "id2label",
        "initializer_range",
        "label2id",
        "model_type",
        "n_ctx",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "sep_token_id",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "use_cache",
    }
)
"""Keys of config.json that change no number of a decoder."""
NEUTRAL = {
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "pretraining_tp": 1,
    "pruned_heads": {},
}
"""Keys that do nothing with this value."""

Keys = Callable[[Any, Mapping[str, Any]], dict[str, Any]]


class _Read(Mapping[str, Any]):
    """A config.json that knows which of its keys were read."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self.config[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.config)

    def __len__(self) -> int:
        return len(self.config)


def understood(keys: Keys) -> Keys:
    """Has a family's `keys` raise ConfigError for a key of config.json that it does not read, unless it is null, and
    for a value that it cannot compute with.

    A family that derives from another one and has `keys` of its own checks these itself.
    """

    @wraps(keys)
    def read(family: Any, config: Mapping[str, Any]) -> dict[str, Any]:
        if type(family).keys is not read:
            return keys(family, config)
        told = _Read(config)
        try:
            found = keys(family, told)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # of hostile values
            said = f"config.json: a value has another type or range than in a model of this family: {short(error)}"
            raise ConfigError(said, hint="see whether the file is whole; `neox --debug` shows more") from error
        for key, value in config.items():
            neutral = key in NEUTRAL and value == NEUTRAL[key]
            if key not in told.read | METADATA and value is not None and not neutral:
                raise ConfigError(
                    f"config.json: {key} is not understood, so the model may be another one",
                    hint="remove the key if it changes no number of the model",
                )
        return found

    return read
