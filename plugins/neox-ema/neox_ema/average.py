"""The callback: after each update it moves the average of what the optimizer steps, and keeps it as state of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neox_core.contracts.engine import Engine
    from neox_core.contracts.events import Where
    from neox_core.contracts.host import RunInfo
    from neox_core.parallel.context import BuildContext
    from neox_ema.settings import EmaSettings

STATE = "ema"
"""The name of the average among the states of a parameter, here and in a checkpoint."""


class Average:
    """An average in fp32 beside each tensor that the optimizer of this rank steps: the weights, or its part of copies.

    As a state of the optimizer it is cut, saved and loaded as the optimizer's own states are, on any number of ranks.
    Where no update was made, the average is the weights, and nothing is kept.
    """

    where: ClassVar[Where] = "every rank"

    def __init__(self, run: RunInfo, context: BuildContext, settings: EmaSettings, engine: Engine) -> None:
        self._decay = settings.ema.decay
        self._optimizer = engine.optimizer
        self._before: dict[Tensor, Tensor] = {}
        self._inside = 0
        self._saved: int | None = None
        self._stored_at: int | None = None
        # torch calls them around the step of each class that calls that of its parent: the outermost call counts
        self._optimizer.register_step_pre_hook(self._enter)
        self._optimizer.register_step_post_hook(self._leave)

    def start(self, step: int) -> None:
        if self._stored_at != step:  # the checkpoint's average is that of an earlier step, or there is none
            for state in self._optimizer.state.values():
                state.pop(STATE, None)

    def save(self, step: int, losses: Sequence[tuple[int, float]]) -> None:
        self._saved = step

    def state(self) -> dict[str, Any]:
        """The step of the average that a checkpoint has: a run without ema keeps it as it was."""
        return {"step": self._saved, "decay": self._decay}

    def restore(self, state: dict[str, Any]) -> None:
        self._stored_at = self._saved = state["step"]

    def _enter(self, *_: Any) -> None:
        self._inside += 1
        if self._inside == 1:
            state = self._optimizer.state
            self._before = {
                each: each.detach().to(torch.float32, copy=True)
                for each in self._stepped()
                if STATE not in state.get(each, {})
            }

    def _leave(self, *_: Any) -> None:
        self._inside -= 1
        if self._inside:
            return
        for each in self._stepped():
            state = self._optimizer.state[each]
            if STATE not in state:
                state[STATE] = self._before[each]
            state[STATE].lerp_(each.detach().to(torch.float32), 1 - self._decay)
        self._before = {}

    def _stepped(self) -> list[Tensor]:
        """What the step at hand updates: DeepSpeed steps one group after the other."""
        return [each for group in self._optimizer.param_groups for each in group["params"] if each.grad is not None]


def averages(engine: Engine) -> dict[str, Tensor]:
    """This rank's elements of the average of each parameter, flat in fp32, by name: those of `engine.shards`."""
    state = engine.optimizer.state
    return {each.name: each.part_of(state.get(each.stepped, {}).get(STATE, each.stepped)) for each in engine.shards}
