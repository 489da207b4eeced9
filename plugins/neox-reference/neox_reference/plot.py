"""The learning rate of a plan as characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neox_core.contracts.optim import planned_schedule
from neox_core.errors import UsageError
from neox_core.plan.lr_schedule import looked_at

if TYPE_CHECKING:
    from neox_core.plan.runfile import RunPlan


def plot_rate(plan: RunPlan, *, width: int = 72, height: int = 16) -> list[str]:
    """Lines of a chart: learning rate over steps. Raises UsageError when plotext is not installed."""
    try:
        import plotext
    except ImportError as error:
        raise UsageError("--plot-lr draws with plotext, which is not installed", hint="pip install plotext") from error
    rate = planned_schedule(plan.optim, plan.train.train_iters)
    steps = [*looked_at(plan.train.train_iters), plan.train.train_iters - 1]
    rates = [rate(step) for step in steps]
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width, height)
    plotext.title(f"learning rate: {plan.optim.schedule.name}, {min(rates):.3g} to {max(rates):.3g}")
    plotext.plot(steps, rates, marker="braille")
    return [line.rstrip() for line in plotext.uncolorize(plotext.build()).splitlines()]
