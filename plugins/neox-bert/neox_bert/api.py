"""What other packages may import of this one: the encoder, its plan and keys, and the sentences of documents.

The plan is light, so that a planner can import it on the host. What needs torch is imported when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neox_bert.section import EncoderSection

if TYPE_CHECKING:
    from neox_bert.checks import encoder_problems
    from neox_bert.model import EncoderTrunk
    from neox_bert.planner import BertPlan, BertPlanner
    from neox_bert.samples import Sentences, sentences_of
    from neox_bert.special import Special, special_tokens

_LATER = {
    "BertPlan": "planner",
    "BertPlanner": "planner",
    "EncoderTrunk": "model",
    "Sentences": "samples",
    "Special": "special",
    "encoder_problems": "checks",
    "sentences_of": "samples",
    "special_tokens": "special",
}

__all__ = [
    "BertPlan",
    "BertPlanner",
    "EncoderSection",
    "EncoderTrunk",
    "Sentences",
    "Special",
    "encoder_problems",
    "sentences_of",
    "special_tokens",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"neox_bert.{_LATER[name]}"), name)
