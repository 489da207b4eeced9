"""What this distribution offers."""

from neox_core.api import Component, hookimpl
from neox_tokenizers.settings import BPESettings, HFSettings

_BPE = "neox_tokenizers.bpe:GPT2BPETokenizer"


@hookimpl
def neox_tokenizers() -> list[Component]:
    return [
        Component("GPT2BPETokenizer", _BPE, BPESettings, summary="Byte-level BPE of GPT-2 (Radford et al. 2019)"),
        Component("GPT2Tokenizer", _BPE, BPESettings, summary="GPT2BPETokenizer under its older name"),
        Component("HFTokenizer", "neox_tokenizers.hf:HFTokenizer", HFSettings, summary="Any tokenizer.json"),
    ]
