"""Where the teacher is of a run that has layer reduction."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neox_gpt.api import GPTPlan


def of_plan(plan: GPTPlan) -> str | None:
    """The folder of the teacher of layer reduction; None: there is none."""
    for change in plan.changes or ():
        reduction = change.settings.get("compression_training", {}).get("layer_reduction", {})
        if reduction.get("enabled"):
            folder: str | None = reduction.get("teacher")
            return folder
    return None
