"""The callback: on how many ranks the steps of a run were made, and after how many restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from neox_core.contracts.events import Where
from neox_elasticity.record import restarts_now

if TYPE_CHECKING:
    from neox_core.contracts.host import RunInfo
    from neox_core.parallel.context import BuildContext
    from neox_elasticity.settings import ElasticitySettings


class History:
    """Keeps each change in the checkpoints, as `{"from_step": step, "world_size": ranks}`: later steps had so many."""

    where: ClassVar[Where] = "rank 0"

    def __init__(self, run: RunInfo, context: BuildContext, settings: ElasticitySettings) -> None:
        self.world_size = run.num_ranks
        self.sizes: list[dict[str, int]] = []
        self._folder, self._restarts = run.run_dir, 0

    def start(self, step: int) -> None:
        self.sizes = [each for each in self.sizes if each["from_step"] < step]
        if not self.sizes or self.sizes[-1]["world_size"] != self.world_size:
            self.sizes.append({"from_step": step, "world_size": self.world_size})
        self._restarts = restarts_now(self._folder)

    def measured(self, step: int) -> dict[str, float]:
        """`restarts`: how often the run was started again, after the first step that follows."""
        number, self._restarts = self._restarts, 0
        return {"restarts": float(number)} if number else {}

    def state(self) -> dict[str, Any]:
        return {"world_sizes": self.sizes}

    def restore(self, state: dict[str, Any]) -> None:
        self.sizes = list(state["world_sizes"])
