"""A small encoder."""

from attrs import fields
from neox_bert.planner import BertPlan
from neox_gpt.api import GPTPlan
from neox_gpt.testing import example_decoder

from neox_core.plan.runfile import ComponentRef

CLS, SEP, MASK, PAD = range(640, 644)


def example_encoder(**more: object) -> BertPlan:
    """Its special tokens are 640 to 643."""
    decoder = example_decoder()
    mixer = ComponentRef("mixer", "bidirectional", "neox-bert", "0.1.0", "neox_bert.attention:Bidirectional")
    given = {each.name: getattr(decoder, each.name) for each in fields(GPTPlan)} | {"mixers": (mixer,)}
    given |= {"num_tokentypes": 2, "binary_head": True, "special": (CLS, SEP, MASK, PAD)}
    return BertPlan(**given | more)
