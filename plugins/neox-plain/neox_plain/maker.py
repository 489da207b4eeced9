"""The engine from a plan: see `contracts.engine.EngineMaker`. Light, since it is imported before torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import frozen

from neox_core.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from neox_core.contracts.curriculum import Curriculum
    from neox_core.contracts.engine import Peak
    from neox_core.parallel.context import BuildContext
    from neox_core.parallel.row import BuildStage
    from neox_core.plan.runfile import RunPlan
    from neox_plain.engine import Engine


@frozen
class Plain:
    """The engine `plain`."""

    plan: RunPlan
    libraries = ()

    def recompute_by(self) -> Callable[..., Tensor] | None:
        return None

    def build_stage(self) -> BuildStage:
        raise ConfigError("the engine plain has no pipeline", hint="pipe-parallel-size: 1, or engine: deepspeed")

    def build(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        context: BuildContext,
        curriculum: Curriculum | None = None,
    ) -> Engine:
        from neox_plain.engine import build_engine

        return build_engine(self.plan, model, optimizer, context, curriculum)

    def find_peak(self, device: torch.device, product: Callable[[Tensor, Tensor], Tensor]) -> Peak:
        from neox_plain.peak import find_peak

        return find_peak(self.plan.precision, device, product)

    def finish(self, rank: int) -> None:
        """Nothing was measured, and no file was written."""
