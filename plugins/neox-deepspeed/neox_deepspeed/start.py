"""Starting DeepSpeed: quickly, quietly, and with nothing done that the plan does not say."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from neox_core.contracts.optim import AveragingOptimizer
from neox_core.errors import ConfigError
from neox_deepspeed.files import use_own_folders
from neox_deepspeed.measure import set_voice
from neox_deepspeed.mpu import Place
from neox_deepspeed.owned import Owned
from neox_deepspeed.partitioned import partition
from neox_deepspeed.patches import import_deepspeed

if TYPE_CHECKING:
    from torch import nn

    from neox_core.parallel.groups import Groups
    from neox_core.plan.runfile import RunPlan


def initialize(plan: RunPlan, model: nn.Module, optimizer: torch.optim.Optimizer, groups: Groups) -> Any:
    """DeepSpeed's engine over `model` and `optimizer`, under plan.engine. Collective: every rank calls it."""
    import_deepspeed(plan.cluster.device)
    import deepspeed

    set_voice(plan, starting=True)
    config = engine_config(plan)
    if isinstance(optimizer, AveragingOptimizer):
        _check_averaging(plan, groups)
        config["gradient_clipping"] = 0.0  # would be by the norm of one rank's gradient
    said = contextlib.nullcontext() if plan.debug else contextlib.redirect_stdout(io.StringIO())
    use_own_folders(plan, config, dist.get_rank() if dist.is_initialized() else 0)
    with said:  # BF16_Optimizer prints memory figures past any logger
        if plan.optim.zero_stage == 3:
            partition(model, config, groups, torch.device(plan.cluster.device))
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=Owned(optimizer, groups) if owns_parameters(plan) else optimizer,
            mpu=Place(groups) if groups.tensor.size > 1 and groups.pipe_size == 1 else None,
            config=config,
            dist_init_required=False,
        )
    set_voice(plan, starting=False)
    return engine


def _check_averaging(plan: RunPlan, groups: Groups) -> None:
    if plan.optim.zero_stage or groups.model is not None:
        raise ConfigError(
            f"{plan.optim.optimizer.name} exchanges between copies of the whole model by itself",
            hint="ZeRO stage 0, model-parallel-size 1 and pipe-parallel-size 0 or 1 go with it",
        )


def engine_config(plan: RunPlan) -> dict[str, Any]:
    """plan.engine, less what this module does itself."""
    config = dict(plan.engine)
    for key in ("gradient_scale", "gradient_norm_counts", "lr_scales"):
        config.pop(key, None)  # neox has them act
    config.pop("torch_autocast", None)  # would also send gradients in half precision
    config.setdefault("timers", {"throughput": {"enabled": False}})  # synchronizes the device at every step
    if plan.cluster.pipeline_parallel > 1:
        # Spreading what is sent between stages over a tensor group asks that its ranks hold the same.
        config["pipeline"] = {"pipe_partitioned": False, "grad_partitioned": False}
    if owns_parameters(plan):
        _leave_copies(config)
    if clips_itself(plan):
        config["gradient_clipping"] = 0.0  # DeepSpeed's clipping keeps the norm to itself, or takes it wrongly
    return config


def _leave_copies(config: dict[str, Any]) -> None:
    """Have DeepSpeed average gradients in the model's type, as at stage 0, with no optimizer of its own around ours."""
    config["zero_optimization"] = {**config["zero_optimization"], "stage": 0}
    config.pop("data_types", None)
    if config.pop("bf16", None) and config.get("communication_data_type") is None:
        config["communication_data_type"] = "bf16"


def owns_parameters(plan: RunPlan) -> bool:
    """Whether a rank steps whole parameters of its own, in place of a slice of all."""
    broadcasts = not plan.engine.get("zero_optimization", {}).get("allgather_partitions", True)
    return plan.optim.zero_stage == 1 and (plan.optim.whole_parameters or broadcasts)


def steps_parameters(plan: RunPlan) -> bool:
    """Whether the optimizer steps the model's own fp32 parameters, with no wrapper of DeepSpeed's between."""
    return plan.optim.zero_stage == 0 and plan.precision.dtype == "fp32"


def clips_copies(plan: RunPlan) -> bool:
    """Whether the optimizer steps an fp32 copy of each 16-bit weight, and DeepSpeed would clip them by another norm.

    DeepSpeed 0.19.8 does not see there which weights are cut over ranks, and counts each once.
    """
    whole = plan.cluster.tensor_parallel == 1 and not plan.engine.get("gradient_norm_counts")
    staged, copied = plan.cluster.pipeline_parallel > 1, plan.precision.dtype != "fp32"
    return copied and plan.optim.zero_stage == 0 and not staged and not whole


def clips_itself(plan: RunPlan) -> bool:
    """Whether neox clips gradients, and not DeepSpeed."""
    return steps_parameters(plan) or clips_copies(plan) or owns_parameters(plan)
