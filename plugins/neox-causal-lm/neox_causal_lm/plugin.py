"""Offers the objective of a causal language model."""

from attrs import frozen
from attrs import validators as v

from neox_core.api import Component, ConfigSection, hookimpl, setting


@frozen
class CausalLMSettings:
    z_loss: float = setting(
        0.0,
        help="In training, add this many times the mean square of the logarithm of the softmax's denominator, which "
        "keeps logits small (1e-4 in PaLM, arXiv:2204.02311, section 5); 0: do not.",
        check=v.ge(0),
    )
    samples_per_pass: int | None = setting(
        None,
        help="Every pass over the training data reads the same first samples of one pass, in the same order, as with "
        "GPT-NeoX's train_epochs. Default: the documents of all passes are shuffled together.",
        unit="samples",
        check=v.optional(v.gt(0)),
    )


@hookimpl
def neox_objectives() -> list[Component]:
    return [
        Component(
            name="causal-lm",
            target="neox_causal_lm.objective:CausalLM",
            settings=CausalLMSettings,
            planner="neox_causal_lm.planner:PLANNER",
            sections=(ConfigSection("blend", "neox_causal_lm.section:BlendSection"),),
            summary="predict the next token; documents are packed into samples as GPT-NeoX does.",
        )
    ]
