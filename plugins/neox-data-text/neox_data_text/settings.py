"""Settings of the backend."""

from attrs import frozen

from neox_core.api import setting


@frozen
class TextSettings:
    text_key: str = setting("text", help="Member of each line of a .jsonl file that holds the text.")
