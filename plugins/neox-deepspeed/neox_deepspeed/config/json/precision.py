"""fp16, bf16 and data_types as the engine reads them. Autocast is ours: the engine's would change what is sent."""

from typing import Any

from attrs import asdict
from neox_plain.api import PrecisionSection

from neox_core.plan.runfile import PrecisionPlan


def precision_json(plan: PrecisionPlan, section: PrecisionSection) -> dict[str, Any]:
    """The blocks of the precision in use."""
    blocks: dict[str, Any] = {}
    if plan.dtype == "bf16":
        blocks["bf16"] = {"enabled": True}
    if plan.dtype == "fp16" and section.fp16 is not None:
        blocks["fp16"] = asdict(section.fp16)
    if section.data_types.grad_accum_dtype is not None:
        blocks["data_types"] = {"grad_accum_dtype": section.data_types.grad_accum_dtype}
    return blocks
