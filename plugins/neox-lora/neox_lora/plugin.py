"""Offers low-rank adapters."""

from neox_core.api import Component, hookimpl


@hookimpl
def neox_model_changes() -> list[Component]:
    return [
        Component(
            name="lora",
            target="neox_lora.lora:Lora",
            settings="neox_lora.settings:LoraSettings",
            planner="neox_lora.plan:adapter_size",
            summary="Low-rank adapters; all other weights are frozen (arXiv:2106.09685).",
        )
    ]
