"""What other plugins may use: every key that a config could write, with its owner, and a plan as rows for people."""

from neox_reference.flat import flat, in_words
from neox_reference.keys import Key, State, all_keys

__all__ = ["Key", "State", "all_keys", "flat", "in_words"]
