"""Offers low-rank adapters, and their export."""

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


@hookimpl
def neox_commands() -> list[Component]:
    summary = "Write the adapters alone, as PEFT reads them."
    return [Component("checkpoint.export-peft", "neox_lora.command:export_peft", summary=summary)]
