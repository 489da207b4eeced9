"""Settings of the tokenizers."""

from attrs import frozen

from neox_core.api import setting


@frozen
class BPESettings:
    vocab_file: str = setting(help="Path of vocab.json: an id for each token.", origin="gpt-neox")
    merge_file: str = setting(help="Path of merges.txt: the pairs to join, in order.", origin="gpt-neox")


@frozen
class HFSettings:
    vocab_file: str = setting(help="Path of a tokenizer.json of the tokenizers library.", origin="gpt-neox")
