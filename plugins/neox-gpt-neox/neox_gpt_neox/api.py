"""What other plugins may use: rules for older spellings of their own keys, and the keys of the documents."""

from typing import TYPE_CHECKING, Any

from neox_gpt_neox.older import Assumed, Gone, Means, Moved, OlderSpelling
from neox_gpt_neox.translate import Spellings, in_text, rules_of, setting_text

if TYPE_CHECKING:
    from neox_gpt_neox.known import KnownKey, known
else:

    def __getattr__(name: str) -> Any:  # a config without mistakes needs neither
        from neox_gpt_neox import known

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(known, name)


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
