"""Steps that are skipped because their gradient is not finite, and the error after too many of them in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch.distributed as dist

from neox_core.errors import RankError
from neox_core.parallel.groups import Groups

if TYPE_CHECKING:
    from neox_core.plan.runfile import RunPlan

_ALONE = Groups(world=None, data=None, data_rank=0, data_size=1)


def most_skipped(plan: RunPlan) -> int:
    """Steps in a row that may be skipped: 0, unless fp16 searches its loss scale or the config allows it."""
    allowed = plan.precision.dtype == "fp16" or plan.train.on_nonfinite_loss == "skip"
    return plan.train.max_skipped_steps if allowed else 0


class SkippedSteps:
    """Counts the skipped steps since the last update; all ranks count the same.

    most: the number of them allowed in a row. find: this rank's parameters whose gradient was not finite in the first
    of them, last layer first. find_source: what first gave such a number, in an engine's words. Both are collective.
    """

    def __init__(
        self,
        most: int,
        find: Callable[[], list[str]] = list,
        groups: Groups = _ALONE,
        find_source: Callable[[], str] = str,
    ) -> None:
        self.most = most
        self._find = find
        self._find_source = find_source
        self._groups = groups
        self._first: int | None = None
        self._last = 0

    def note(self, step: int, *, made: bool) -> None:
        """Count a step. step: finished steps, including this one. made: whether it made an update."""
        self._last = step
        if made:
            self._first = None
        elif self._first is None:
            self._first = step

    @property
    def too_many(self) -> bool:
        """Whether more than `most` steps in a row were skipped."""
        return self._first is not None and self._last - self._first >= self.most

    def fail(self) -> NoReturn:
        """Raise RankError with the first step in the row, its ranks and parameter. Collective."""
        first = self._last if self._first is None else self._first
        if self.most == 0:
            self.fail_at(first)
        said = f"the gradient is not finite since step {first}{self._where()}"
        hint = f"lower the learning rate or clip gradients; max-skipped-steps is {self.most}"
        raise RankError(f"no update was made in {self._last - first + 1} steps in a row: {said}", hint=hint)

    def fail_at(self, step: int) -> NoReturn:
        """Raise the error of a step whose gradient is not finite, in a run that skips no steps. Collective."""
        hint = "lower the learning rate or clip gradients, and continue from an earlier checkpoint; or "
        hint += "set on-nonfinite-loss: skip to skip such steps"
        raise RankError(f"the gradient is not finite at step {step}{self._where()}", hint=hint)

    def source(self) -> str:
        """For the error of a loss: the part of the model that first gave a number that is not finite. Collective."""
        told = [each for each in self._of_all_ranks(self._find_source()) if each[1]]
        first = min(told, key=lambda each: each[0], default=(0, ""))[1]  # the forward pass starts in the first stage
        return first and f": the first number that is not finite is what {first}"

    def _of_all_ranks(self, mine: Any) -> list[tuple[int, Any]]:
        """Each rank's stage and what it has."""
        if self._groups.world is None:
            return [(self._groups.pipe_rank, mine)]
        found: list[tuple[int, Any]] = [(0, None)] * dist.get_world_size(self._groups.world)
        dist.all_gather_object(found, (self._groups.pipe_rank, mine), group=self._groups.world)
        return found

    def _where(self) -> str:
        found: list[tuple[int, list[str]]] = self._of_all_ranks(self._find())
        bad = [rank for rank, (_, names) in enumerate(found) if names]
        if not bad:
            return ", once the ranks have added up theirs"
        _, names = max((found[rank] for rank in bad), key=lambda each: each[0])  # the backward pass starts there
        others = {name for rank in bad for name in found[rank][1]} - {names[0]}
        more = f" and {len(others)} more" if others else ""
        return f" on rank {', '.join(map(str, bad))}: of {names[0]}{more}"
