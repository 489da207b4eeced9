"""fp16, bf16 and data_types as the engine reads them. Autocast is ours: the engine's would change what is sent."""

from typing import Any

from neox_core.config.sections.precision import PrecisionSection
from neox_core.plan.runfile import PrecisionPlan


def precision_json(plan: PrecisionPlan, section: PrecisionSection) -> dict[str, Any]:
    """The blocks of the precision in use."""
    blocks: dict[str, Any] = {}
    if plan.dtype == "bf16":
        blocks["bf16"] = {"enabled": True}
    if plan.dtype == "fp16" and section.fp16 is not None:
        fp16 = section.fp16
        blocks["fp16"] = {
            "enabled": True,
            "auto_cast": fp16.auto_cast,
            "loss_scale": fp16.loss_scale,
            "initial_scale_power": fp16.initial_scale_power,
            "loss_scale_window": fp16.loss_scale_window,
            "hysteresis": fp16.hysteresis,
            "consecutive_hysteresis": fp16.consecutive_hysteresis,
            "min_loss_scale": fp16.min_loss_scale,
        }
    if section.data_types.grad_accum_dtype is not None:
        blocks["data_types"] = {"grad_accum_dtype": section.data_types.grad_accum_dtype}
    return blocks
