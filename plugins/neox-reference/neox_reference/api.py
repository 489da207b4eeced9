"""What other plugins may use: every key that a config could write, with its owner, and its type in words."""

from neox_reference.describe import type_in_words
from neox_reference.keys import Key, State, all_keys

__all__ = ["Key", "State", "all_keys", "type_in_words"]
