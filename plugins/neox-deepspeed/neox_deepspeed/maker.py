"""DeepSpeed from a plan: see `contracts.EngineMaker`. Light, since it is imported before torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import frozen

from neox_deepspeed.patches import bound_waits
from neox_deepspeed.silence_deepspeed import quiet_engine

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from neox_core.contracts import Curriculum
    from neox_core.contracts.engine import Peak
    from neox_core.parallel.context import BuildContext
    from neox_core.parallel.row import BuildStage
    from neox_core.plan.runfile import RunPlan
    from neox_deepspeed.engine import Engine


@frozen
class DeepSpeed:
    """DeepSpeed under `plan.engine`."""

    plan: RunPlan
    libraries = ("deepspeed",)

    def __attrs_post_init__(self) -> None:
        os.environ["DS_ACCELERATOR"] = self.plan.cluster.device  # DeepSpeed reads it once, when it is imported
        quiet_engine(self.plan.debug)
        bound_waits()

    def recompute_by(self) -> Callable[..., Tensor] | None:
        from neox_deepspeed.recompute import recompute_by_deepspeed

        recompute = self.plan.model.recompute
        return recompute_by_deepspeed if recompute is not None and recompute.deepspeed else None

    def build_stage(self) -> BuildStage:
        from neox_deepspeed.pipeline import build_stage

        return build_stage

    def build(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        context: BuildContext,
        curriculum: Curriculum | None = None,
    ) -> Engine:
        from neox_deepspeed.engine import build_engine

        return build_engine(self.plan, model, optimizer, context, curriculum)

    def find_peak(self, device: torch.device, product: Callable[[Tensor, Tensor], Tensor]) -> Peak:
        from neox_plain.api import find_peak

        return find_peak(self.plan.precision, device, product)

    def finish(self, rank: int) -> None:
        from neox_deepspeed.files import remove_own_folders
        from neox_deepspeed.measure import print_collectives

        print_collectives(self.plan)
        remove_own_folders(self.plan, rank)
