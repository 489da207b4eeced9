"""The JSON for the engine: a pure function of the plan.

Every value that matters is written out, since the engine's defaults have moved between its versions. No block appears
that is not wanted: some of them act, or raise, by being there at all.
"""

from typing import Any

from neox_core.config.sections.precision import Fp16Block
from neox_core.config.sections.zero import ZeroBlock
from neox_core.plan.runfile import BatchPlan, PrecisionPlan


def engine_json(
    batch: BatchPlan, precision: PrecisionPlan, zero: ZeroBlock, fp16: Fp16Block | None, *, gradient_clipping: float
) -> dict[str, Any]:
    """What `deepspeed.initialize` gets beside the client's model, optimizer and schedule."""
    engine: dict[str, Any] = {
        "train_batch_size": batch.train_batch,
        "train_micro_batch_size_per_gpu": batch.micro_batch,
        "gradient_accumulation_steps": batch.gradient_accumulation,
        "gradient_clipping": gradient_clipping,
        "prescale_gradients": False,
        "gradient_predivide_factor": 1.0,
        "steps_per_print": None,
        "wall_clock_breakdown": False,
        "dump_state": False,
        "zero_optimization": _zero(zero),
        # the optimizer comes from a plugin; that it may be sharded was decided before the start
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    if precision.dtype == "bf16":
        engine["bf16"] = {"enabled": True}
    if precision.dtype == "fp16" and fp16 is not None:
        engine["fp16"] = {
            "enabled": True,
            "auto_cast": fp16.auto_cast,
            "loss_scale": fp16.loss_scale,
            "initial_scale_power": fp16.initial_scale_power,
            "loss_scale_window": fp16.loss_scale_window,
            "hysteresis": fp16.hysteresis,
            "consecutive_hysteresis": fp16.consecutive_hysteresis,
            "min_loss_scale": fp16.min_loss_scale,
        }
    return engine


def _zero(zero: ZeroBlock) -> dict[str, Any]:
    return {
        "stage": zero.stage,
        "allgather_bucket_size": zero.allgather_bucket_size,
        "reduce_bucket_size": zero.reduce_bucket_size,
        "overlap_comm": zero.overlap_comm,
        "reduce_scatter": zero.reduce_scatter,
        "contiguous_gradients": zero.contiguous_gradients,
        "round_robin_gradients": zero.round_robin_gradients,
        "load_from_fp32_weights": zero.load_from_fp32_weights,
    }
