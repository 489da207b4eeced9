"""Offers the perplexity of each validation dataset."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_evaluators() -> list[Component]:
    return [
        Component(
            "perplexity_by_dataset",
            "neox_perplexity.by_dataset:PerplexityByDataset",
            summary="Loss and perplexity of each validation dataset by itself",
        )
    ]
