"""The callback: judges the loss of each step by those before it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, ClassVar

from neox_core.contracts.events import Ask, Where
from neox_core.errors import RankError

if TYPE_CHECKING:
    from neox_core.contracts.host import RunInfo
    from neox_core.parallel.context import BuildContext
    from neox_spike_guard.settings import SpikeGuardSettings

Losses = Sequence[tuple[int, float]]


class SpikeGuard:
    """Asks to rewind at a loss above its bound. The losses of all ranks are the same, so all of them ask the same.

    Its state is the window of losses and the number of rewinds, so a run that resumes judges as one that did not stop.
    """

    where: ClassVar[Where] = "every rank"
    rewinds: ClassVar[bool] = True

    def __init__(self, run: RunInfo, context: BuildContext, settings: SpikeGuardSettings) -> None:
        self.rule = settings.spike_guard
        self.window: list[float] = []
        self.rewinds_made = 0

    def start(self, step: int) -> Ask | None:
        return Ask("save", "a spike before the first save goes back to it")

    def log(self, step: int, values: Mapping[str, float], losses: Losses) -> Ask | None:
        return self._judge(losses)

    def save(self, step: int, losses: Losses) -> Ask | None:
        return self._judge(losses)

    def state(self) -> dict[str, Any]:
        return {"window": self.window, "rewinds_made": self.rewinds_made}

    def restore(self, state: dict[str, Any]) -> None:
        self.window = list(state["window"])
        self.rewinds_made = max(self.rewinds_made, state["rewinds_made"])  # those since the checkpoint count too

    def rewound(self, step: int, ask: Ask) -> None:
        self.rewinds_made += 1

    def bound(self) -> float:
        """The highest loss that is not a spike."""
        if len(self.window) < self.rule.least:
            return math.inf
        return fmean(self.window) + max(self.rule.margin, self.rule.deviations * pstdev(self.window))

    def _judge(self, losses: Losses) -> Ask | None:
        spikes = []
        for step, loss in losses:
            bound = self.bound()
            if loss > bound or (math.isnan(loss) and bound < math.inf):
                spikes.append((step, loss, bound))
            elif math.isfinite(loss):
                self.window = [*self.window, loss][-self.rule.window :]
        if not spikes:
            return None
        step, loss, bound = spikes[0]
        said = f"the loss of step {step} is {loss:.4f}, above {bound:.4f}"
        if self.rewinds_made >= self.rule.most:
            raise RankError(
                f"{said}, after {self.rewinds_made} rewinds of spike_guard",
                hint="lower the learning rate or clip gradients, and resume; or raise spike_guard.most",
            )
        return Ask("rewind", said, step - self.rule.before, spikes[-1][0] + self.rule.after)
