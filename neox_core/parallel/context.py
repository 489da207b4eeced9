"""The context in which modules of a model are built: device, dtype, groups of ranks, seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from attrs import frozen

from neox_core.parallel.groups import Groups

if TYPE_CHECKING:
    from neox_core.plan.runfile import RunPlan

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@frozen
class BuildContext:
    """device and dtype: of the weights. seed: of the run, equal on all ranks.

    narrow_loss: compute a token's loss in the dtype of its logits (`fp16-lm-cross-entropy`). host_first: build the
    model in host memory, from where the engine distributes each weight (ZeRO 3).
    """

    device: torch.device
    dtype: torch.dtype
    groups: Groups
    seed: int
    narrow_loss: bool = False
    host_first: bool = False


def build_context(plan: RunPlan, groups: Groups, local_rank: int) -> BuildContext:
    """The context of this rank. On a GPU machine it also sets the current device."""
    device = torch.device("cpu")
    if plan.cluster.device == "cuda":
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    precision = plan.precision
    return BuildContext(
        device,
        DTYPES[precision.dtype],
        groups,
        plan.train.seed,
        narrow_loss=precision.fp16_lm_cross_entropy,
        host_first=plan.optim.zero_stage == 3,
    )
