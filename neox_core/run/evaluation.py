"""What evaluators measure: the validation data, and the model of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from attrs import define, evolve

from neox_core.data.batches import build_batches
from neox_core.data.samples import open_split
from neox_core.run.report import mean_of_ranks

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.contracts.engine import Engine
    from neox_core.contracts.objective import Samples, SampleStream
    from neox_core.parallel.context import BuildContext
    from neox_core.plan.runfile import DataSource, RunPlan


@define(eq=False)
class Evaluation:
    """An `EvaluationRun`. alive: called with each batch."""

    plan: RunPlan
    context: BuildContext
    vocab_size: int
    engine: Engine
    alive: Callable[[], None] = lambda: None

    def open(self, sources: Sequence[DataSource]) -> Samples | SampleStream:
        plan = evolve(self.plan, data=evolve(self.plan.data, valid=tuple(sources))) if sources else self.plan
        return open_split(plan, "valid", self.vocab_size)

    def loss(self, samples: Samples | SampleStream) -> float:
        groups = self.context.groups
        place = partial(build_batches, data_rank=groups.data_rank, data_size=groups.data_size)
        batches = place(self.plan, "valid", first_step=0, opened=samples)
        return mean_of_ranks(self.engine.evaluate(self._watched(batches)), groups)

    def _watched(self, batches: Iterator[Tensor]) -> Iterator[Tensor]:
        for batch in batches:
            self.alive()
            yield batch
