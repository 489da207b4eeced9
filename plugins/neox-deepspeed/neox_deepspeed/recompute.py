"""DeepSpeed's activation checkpointing, as a function that a model calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from neox_deepspeed.mpu import Place

if TYPE_CHECKING:
    from neox_core.parallel.groups import Groups
    from neox_core.plan.runfile import RecomputePlan


def recompute_by_deepspeed(function: Callable[..., Tensor], x: Tensor, *shared: Any) -> Tensor:
    """`parallel.row.Recompute.by`. Before its first call comes `configure_recompute`."""
    from deepspeed.runtime.activation_checkpointing import checkpointing

    # It empties the tensors that it stores elsewhere; those that all segments get must not be.
    result: Tensor = checkpointing.checkpoint(function, x, *map(_left_alone, shared))
    return result


def configure_recompute(plan: RecomputePlan, groups: Groups) -> None:
    """Set the options of DeepSpeed's function for this process. DeepSpeed must have been started."""
    from deepspeed.runtime.activation_checkpointing import checkpointing

    checkpointing.configure(
        Place(groups),
        partition_activations=plan.partition and groups.tensor.size > 1,
        contiguous_checkpointing=plan.contiguous and groups.tensor.size > 1,
        num_checkpoints=plan.num_checkpoints,
        checkpoint_in_cpu=plan.in_cpu,
        synchronize=plan.synchronize,
        profile=plan.profile,
    )


def _left_alone(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.view_as(value)
        value.__dict__["no_checkpointing"] = True
    return value
