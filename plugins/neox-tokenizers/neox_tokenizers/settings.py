"""Settings of the tokenizer that neox has itself."""

from attrs import frozen

from neox_core.api import setting


@frozen
class BPESettings:
    vocab_file: str = setting(help="Path of vocab.json: an id for each token.", file=True, origin="gpt-neox")
    merge_file: str = setting(help="Path of merges.txt: the pairs to join, in order.", file=True, origin="gpt-neox")
