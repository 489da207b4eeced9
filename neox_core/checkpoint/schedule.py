"""The schedule with which a run continues: the config's, or that of the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attrs import frozen

from neox_core.contracts.optim import planned_schedule, planned_shape

if TYPE_CHECKING:
    from neox_core.contracts.optim import LRSchedule, Optimizer
    from neox_core.plan.component import ComponentRef
    from neox_core.plan.runfile import OptimPlan


@frozen
class RunSchedule:
    """A schedule as the loop uses it. Raises PluginError for a fault of the component."""

    rate: LRSchedule
    made: Any
    reference: ComponentRef

    def __call__(self, step: int) -> float:
        """The learning rate of the update after `step` finished steps."""
        return self.rate(step)

    @contextmanager
    def around(self, step: int, optimizer: Optimizer) -> Iterator[None]:
        """That update's options in the groups of the optimizer; their own after it, which a checkpoint stores."""
        with self.reference.blamed():
            options = self.made.options(step) if hasattr(self.made, "options") else {}
        before = [{name: group[name] for name in options if name in group} for group in optimizer.param_groups]
        for group, names in zip(optimizer.param_groups, before, strict=True):
            group.update({name: options[name] for name in names})
        try:
            yield
        finally:
            for group, own in zip(optimizer.param_groups, before, strict=True):
                group.update(own)


def run_schedule(plan: OptimPlan, total_steps: int) -> RunSchedule:
    """The schedule of a plan. total_steps: length of the run, in optimizer steps."""
    made = plan.schedule.make(planned_shape(plan, total_steps))
    return RunSchedule(planned_schedule(plan, total_steps), made, plan.schedule)
