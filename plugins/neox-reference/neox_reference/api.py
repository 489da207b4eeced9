"""What other plugins may use: every key that a config could write, with its owner."""

from neox_reference.keys import Key, State, all_keys

__all__ = ["Key", "State", "all_keys"]
