"""What this distribution offers."""

from neox_core.api import Component, hookimpl

_BPE = "neox_tokenizers.bpe:GPT2BPETokenizer"
_HF = "neox_tokenizers.hf:HFTokenizer"


@hookimpl
def neox_tokenizers() -> list[Component]:
    return [
        Component(
            "GPT2BPETokenizer",
            _BPE,
            "neox_tokenizers.settings:BPESettings",
            summary="Byte-level BPE of GPT-2 (Radford et al. 2019)",
            planner="neox_tokenizers.plan:bpe",
        ),
        Component(
            "GPT2Tokenizer",
            _BPE,
            "neox_tokenizers.settings:BPESettings",
            summary="GPT2BPETokenizer under its older name",
            planner="neox_tokenizers.plan:bpe",
        ),
        Component(
            "HFTokenizer",
            _HF,
            "neox_tokenizers.library_settings:HFSettings",
            summary="Any tokenizer.json",
            planner="neox_tokenizers.plan:hf",
        ),
        Component(
            "HFGPT2Tokenizer",
            _HF,
            "neox_tokenizers.library_settings:HFSettings",
            summary="HFTokenizer under GPT-NeoX's name for GPT-2's",
            planner="neox_tokenizers.plan:hf",
        ),
        Component(
            "SPMTokenizer",
            "neox_tokenizers.sentencepiece:SPMTokenizer",
            "neox_tokenizers.library_settings:SentencePieceSettings",
            summary="A SentencePiece model (Kudo & Richardson 2018)",
        ),
        Component(
            "TiktokenTokenizer",
            "neox_tokenizers.tiktoken:TiktokenTokenizer",
            "neox_tokenizers.library_settings:TiktokenSettings",
            summary="An encoding of tiktoken, by name or file",
        ),
        Component(
            "CharLevelTokenizer",
            "neox_tokenizers.characters:CharLevelTokenizer",
            summary="An id for each byte",
            planner="neox_tokenizers.plan:characters",
        ),
    ]
