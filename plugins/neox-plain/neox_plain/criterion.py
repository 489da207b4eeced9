"""The objective in an engine: the loss of a micro-batch, with what parts of the model add to it, and what is measured.

Numbers stay on the device until somebody asks for them at a log step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neox_core.contracts.host import MOST_METRICS, TOO_MANY
from neox_core.contracts.objective import Batch, Loss
from neox_plain.token_weights import shares_of

if TYPE_CHECKING:
    from neox_core.contracts.objective import Objective, Outputs, Run
    from neox_core.parallel.groups import Groups
    from neox_core.plan.runfile import ComponentRef

OWN = "objective_loss"
"""The objective's loss in the log, where parts of the model add others to what is trained on."""


class Criterion:
    """What a micro-batch costs, by the objective `reference`. Raises PluginError for one that breaks its contract.

    passes: over the model for the last batch in training; one without gradients is a third of one.
    """

    def __init__(self, reference: ComponentRef, plan: Any) -> None:
        self.reference = reference
        self.objective: Objective = reference.make(plan)
        lacks = [name for name in ("inputs", "weights", "loss") if not callable(getattr(self.objective, name, None))]
        if lacks:
            raise reference.fault(f"has no method {lacks[0]}")
        self.draws: bool = getattr(self.objective, "draws", False)
        self.passes = 1.0
        self._names: dict[bool, frozenset[str]] = {}  # of metrics, with gradients and without
        self._trained, self._evaluated = _Means(), _Means()

    def shares(self, batches: Iterator[Batch], groups: Groups) -> Iterator[tuple[Batch, Tensor | None]]:
        """Micro-batches, equally many on every rank, each with what its mean loss is multiplied by; None: nothing.

        Where labels have weights, all batches are read at once, and it is collective over the data-parallel ranks.
        """
        for batch in batches:
            weights = self._weights(batch)
            if weights is not None:
                rest = list(batches)
                sums = [weights.sum(), *map(self._weight, rest)]
                yield from zip((batch, *rest), shares_of(sums, groups), strict=True)
                return
            yield batch, None

    def of(self, batch: Batch, share: Tensor | None = None, *, measures: bool = True) -> Callable[[Run], Tensor]:
        """The function of the passes of a model that gives what is trained on for `batch`, or evaluated: a scalar.

        share: as of `shares`. Auxiliary losses are added in training alone. measures: whether `metrics` counts it.
        """

        def compute(run: Run) -> Tensor:
            seen: list[Outputs] = []
            thirds: list[int] = []

            def passing(tokens: Tensor) -> Outputs:
                outputs = run(tokens)
                thirds.append(3 if torch.is_grad_enabled() else 1)
                if torch.is_grad_enabled():
                    seen.append(outputs)
                return outputs

            found = self.objective.loss(passing, batch)  # an error may be the model's: memory that runs out
            mean = self._mean(found)
            total, numbers = self._total(found, mean, share, seen)
            if measures and torch.is_grad_enabled():
                self.passes = sum(thirds) / 3
                self._trained.add(numbers)
            elif measures:
                self._evaluated.add(numbers)
            return total

        return compute

    def metrics(self) -> dict[str, Tensor]:
        """The means of what was measured in training since the last call, by name."""
        return self._trained.take()

    def evaluation_metrics(self) -> dict[str, Tensor]:
        """The same of batches without gradients."""
        return self._evaluated.take()

    def _weights(self, batch: Batch) -> Tensor | None:
        with self.reference.blamed("weights(), which gives what each label counts for, or None"):
            return self.objective.weights(batch)

    def _weight(self, batch: Batch) -> Tensor:
        weights = self._weights(batch)
        if weights is None:
            raise self.reference.fault("weights() gives None for some batches, and weights for others")
        return weights.sum()

    def _mean(self, found: Any) -> Tensor:
        if not isinstance(found, Loss) or not isinstance(found.mean, Tensor) or found.mean.dim():
            given = type(found).__name__ if not isinstance(found, Loss) else _shown(found.mean)
            clause = "its contract says that `mean` is a scalar"
            raise self.reference.fault(f"loss() does not give a Loss whose mean is a scalar, but {given}: {clause}")
        return found.mean

    def _total(
        self, found: Loss, mean: Tensor, share: Tensor | None, seen: Sequence[Outputs]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What is trained on, or evaluated, and what is measured besides. seen: the passes with gradients."""
        factor: Tensor | float = 1.0 if share is None else share
        for name, value in found.metrics.items():
            if not isinstance(value, Tensor) or value.dim():
                given = _shown(value).removeprefix("one of ")
                raise self.reference.fault(f"loss() gives the metric {name} as {given}: its contract says scalars")
        names = self._names.setdefault(torch.is_grad_enabled(), frozenset(found.metrics))
        if len(names) > MOST_METRICS:
            raise self.reference.fault(f"loss() gives {len(names):,} metrics: {TOO_MANY}")
        if new := sorted(names ^ found.metrics.keys()):
            raise self.reference.fault(f"loss() gives the metric {new[0]} for some batches alone: always, or never")
        numbers = {f"objective_{name}": value * factor for name, value in found.metrics.items()}
        total = mean if share is None else mean * share
        own = total
        for outputs in seen:
            for name, value in outputs.auxiliary_losses.items():
                total = total + value
                numbers[name] = numbers[name] + value if name in numbers else value
        if total is not own:
            numbers[OWN] = own
        for name in seen[0].metrics if seen else ():
            numbers[name] = torch.stack([outputs.metrics[name] for outputs in seen]).mean()
        return total, numbers


class _Means:
    """Sums of numbers over batches, on the device, until somebody takes their means."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._batches = 0

    def add(self, numbers: Mapping[str, Tensor]) -> None:
        for name, value in numbers.items():
            own = value.detach()
            self._sums[name] = self._sums[name] + own if name in self._sums else own
        self._batches += 1

    def take(self) -> dict[str, Tensor]:
        found = {name: value / self._batches for name, value in self._sums.items()}
        self._sums, self._batches = {}, 0
        return found


def _shown(mean: object) -> str:
    return f"one of {list(mean.shape)}" if isinstance(mean, Tensor) else f"one of a {type(mean).__name__}"
