"""What components measure, for the log: one number for each name, the mean over the ranks that give it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from neox_core.contracts.host import MOST_METRICS, TOO_MANY
from neox_core.errors import PluginError
from neox_core.hooks.blame import blame
from neox_core.untrusted import short

if TYPE_CHECKING:
    from torch import Tensor, nn

    from neox_core.contracts.engine import Engine
    from neox_core.parallel.context import BuildContext


class Metrics:
    """The metrics of the engine, and of everything that keeps `contracts.host.Measured`: of `sources`, by the first
    part of their names in the log, and of the modules of `model`.
    """

    def __init__(self, engine: Engine, sources: Mapping[str, object], model: nn.Module, context: BuildContext) -> None:
        self._engine, self._context = engine, context
        found = [*sources.items(), *(("model", module) for module in model.modules())]
        self._sources: list[tuple[str, Any]] = [pair for pair in found if callable(getattr(pair[1], "metrics", None))]
        self._names: dict[str, tuple[str, ...]] = {}

    def read(self) -> dict[str, float]:
        """The metrics since the last call. Waits for the device. Collective.

        Raises PluginError for a name that is new after the first call.
        """
        return self._means(self._measured(), "log step")

    def of_evaluation(self) -> dict[str, float]:
        """The same of what the objective measured in the last evaluation."""
        measured = getattr(self._engine, "evaluation_metrics", dict)
        return self._means(measured().items(), "evaluation")

    def _means(self, measured: Iterable[tuple[str, float | Tensor]], when: str) -> dict[str, float]:
        own: dict[str, list[float | Tensor]] = {}
        for name, value in measured:
            own.setdefault(short(name), []).append(value)
        if when not in self._names:
            self._names[when] = self._agreed(own)
        names = self._names[when]
        if new := sorted(own.keys() - {*names}):
            raise PluginError(f"the metric {new[0]} was not there at the first {when}", hint="tell its author")
        if not names:
            return {}
        values = [self._number(own.get(name, ())) for name in names]
        counts = [float(len(own.get(name, ()))) for name in names]
        table = torch.stack([torch.stack(values), torch.tensor(counts, device=self._context.device)])
        if self._context.groups.world is not None:
            dist.all_reduce(table, group=self._context.groups.world)
        sums, numbers = table.tolist()
        return {name: sums[at] / numbers[at] for at, name in enumerate(names) if numbers[at]}

    def _measured(self) -> Iterator[tuple[str, float | Tensor]]:
        yield from self._engine.metrics().items()
        for prefix, source in self._sources:
            found = source.metrics()
            if len(found) > MOST_METRICS:
                said = ValueError(f"{type(source).__name__}.metrics() gives {len(found):,} numbers: {TOO_MANY}")
                raise blame(said, type(source).__module__) or said
            for name, value in found.items():
                yield f"{prefix}_{name}", value

    def _number(self, values: Any) -> Tensor:
        numbers = [torch.as_tensor(each, dtype=torch.float32, device=self._context.device).detach() for each in values]
        return torch.stack(numbers).sum() if numbers else torch.zeros((), device=self._context.device)

    def _agreed(self, own: Mapping[str, object]) -> tuple[str, ...]:
        """The names that any rank has, in one order. A stage of a pipeline has those of its own layers."""
        world = self._context.groups.world
        if world is None:
            return tuple(sorted(own))
        names: list[Any] = [None] * dist.get_world_size(world)
        dist.all_gather_object(names, sorted(own), group=world)
        return tuple(sorted({name for each in names for name in each}))
