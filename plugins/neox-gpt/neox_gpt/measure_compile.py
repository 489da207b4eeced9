"""The callback of `compile: auto`: trains some steps uncompiled and some compiled, and the rest in the faster way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.distributed as dist

from neox_core.terminal import echo
from neox_gpt.block import compile_layers
from neox_gpt.compiled_loss import CompiledLoss
from neox_gpt.config.sections.model import TIMED_INTERVALS

if TYPE_CHECKING:
    from neox_core.contracts.engine import Engine
    from neox_core.contracts.events import Where
    from neox_core.contracts.host import RunInfo
    from neox_core.parallel.context import BuildContext

GAIN = 0.02
"""A compiled step has to be faster by more than this part: times vary by about as much, and memory is saved."""


class MeasureCompile:
    """Every step that it times is a step of the run. Its state is what it chose, so that a resumed run does the same.

    All ranks choose the same: by their slowest, since a step of several ranks takes as long as that.
    """

    where: ClassVar[Where] = "collective"

    def __init__(
        self, run: RunInfo, context: BuildContext, settings: None, engine: Engine, backend: str = "inductor"
    ) -> None:
        """backend: of torch.compile."""
        self.context, self.model, self.backend = context, engine.model, backend
        self.compiled: bool | None = None
        self._times: tuple[list[float], list[float]] = [], []  # as it is, compiled
        self._compiles = False
        self._warm = False
        self._told: dict[str, float] = {}

    def start(self, step: int) -> None:
        if self.compiled is not None:
            self._say(f"the run continues {self._way}, as was chosen before the checkpoint")
        if self.compiled:
            self._compile(on=True)

    def log(self, step: int, values: Mapping[str, float], losses: Sequence[tuple[int, float]]) -> None:
        if self.compiled is not None:
            return
        if not self._warm:
            self._warm = True
            return
        times = self._times[self._compiles]
        times.append(values["step_s"])
        if len(times) < TIMED_INTERVALS:
            return
        if not self._compiles:
            self._say(f"steps are compiled from {step + 1} on, to measure whether that is faster")
            self._compile(on=True)
            self._warm = False
        else:
            self._choose()

    def measured(self, step: int) -> Mapping[str, float]:
        told, self._told = self._told, {}
        return told

    def state(self) -> dict[str, bool] | None:
        return None if self.compiled is None else {"compiled": self.compiled}

    def restore(self, state: dict[str, bool]) -> None:
        if self.compiled is None:  # else the run has rewound to before the choice
            self.compiled = state["compiled"] is True

    def _choose(self) -> None:
        plain, compiled = self._slowest([median(each) for each in self._times])
        self._told = {"plain_step_s": plain, "compiled_step_s": compiled}
        self.compiled = compiled < (1 - GAIN) * plain
        if not self.compiled:
            self._compile(on=False)
        self._say(f"a step takes {plain:.3g} s, compiled {compiled:.3g} s: the run continues {self._way}")

    @property
    def _way(self) -> str:
        return "compiled" if self.compiled else "uncompiled"

    def _slowest(self, times: list[float]) -> list[float]:
        if self.context.groups.world is None:
            return times
        slowest = torch.tensor(times, dtype=torch.float32, device=self.context.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=self.context.groups.world)
        return list(slowest.tolist())

    def _compile(self, *, on: bool) -> None:
        self._compiles = on
        compile_layers(self.model, self.backend, on=on)
        for module in self.model.modules():
            if isinstance(loss := getattr(module, "compiled_loss", None), CompiledLoss):
                loss.on = on

    def _say(self, message: str) -> None:
        if not dist.is_initialized() or dist.get_rank() == 0:
            echo(f"compile: auto: {message}")
