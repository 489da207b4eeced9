"""What other plugins may use: rules for older spellings of their own keys, and the keys of the documents."""

from neox_gpt_neox.known import KnownKey, known
from neox_gpt_neox.older import Assumed, Gone, Means, Moved, OlderSpelling
from neox_gpt_neox.translate import Spellings, in_text, rules_of, setting_text

__all__ = [
    "Assumed",
    "Gone",
    "KnownKey",
    "Means",
    "Moved",
    "OlderSpelling",
    "Spellings",
    "in_text",
    "known",
    "rules_of",
    "setting_text",
]
