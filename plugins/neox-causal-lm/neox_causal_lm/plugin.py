"""Offers the objective of a causal language model."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_objectives() -> list[Component]:
    return [
        Component(
            name="causal-lm",
            target="neox_causal_lm.objective:CausalLM",
            summary="predict the next token; documents are packed into samples as GPT-NeoX does.",
        )
    ]
