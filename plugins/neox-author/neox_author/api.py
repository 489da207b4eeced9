"""What other plugins may use: settings, their types and defaults in words."""

from neox_author.in_words import (
    allowed_in_words,
    default_in_words,
    default_of,
    known_type_in_words,
    parts_of,
    type_in_words,
)

__all__ = ["allowed_in_words", "default_in_words", "default_of", "known_type_in_words", "parts_of", "type_in_words"]
