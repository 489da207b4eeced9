"""What other plugins may use: settings, their types and defaults in words, the source of a module, and all ops."""

from neox_author.in_words import (
    allowed_in_words,
    default_in_words,
    default_of,
    known_type_in_words,
    parts_of,
    type_in_words,
)
from neox_author.ops import Op, installed_ops
from neox_author.signature import file_of

__all__ = [
    "Op",
    "allowed_in_words",
    "default_in_words",
    "default_of",
    "file_of",
    "installed_ops",
    "known_type_in_words",
    "parts_of",
    "type_in_words",
]
