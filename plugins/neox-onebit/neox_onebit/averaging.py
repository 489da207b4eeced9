"""What the three optimizers share: the count of steps and the exchange of momenta."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from neox_core.errors import CheckpointError, ConfigError
from neox_onebit.exchange import Exchange
from neox_onebit.settings import OneBitSettings
from neox_onebit.wire import Wire

Live = Iterator[tuple[dict[str, Any], Tensor, dict[str, Any]]]


class Averaging(torch.optim.Optimizer):
    """A `contracts.optim.AveragingOptimizer`. The option `steps` of each group counts the finished steps."""

    def __init__(self, params: Iterable[dict[str, Any]], settings: OneBitSettings, wire: Wire) -> None:
        defaults = {"lr": settings.lr, "betas": settings.betas, "eps": settings.eps}
        super().__init__(params, {**defaults, "weight_decay": settings.weight_decay, "steps": 0})
        self.kernels: Mapping[str, Callable[..., Any]] = {}
        self._wire = wire
        self._exchange: Any = None  # made in the first step that compresses

    def needs_average(self) -> bool:
        return self._averaged(self.param_groups[0]["steps"] + 1)

    @abstractmethod
    def _averaged(self, step: int) -> bool:
        """Whether the engine averages the gradients of a step over the ranks.

        step: counted from 1
        """

    @abstractmethod
    def _advance(self, step: int) -> None:
        """Update the weights and the state.

        step: counted from 1
        """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step. Where no parameter has a gradient, do nothing and count nothing."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if any(parameter.grad is not None for parameter in self._parameters()):
            for group in self.param_groups:
                group["steps"] += 1
            self._advance(self.param_groups[0]["steps"])
        return loss

    def own_state(self) -> dict[str, Tensor]:
        return {} if self._exchange is None else self._exchange.state()

    def load_own_state(self, stored: Sequence[Mapping[str, Tensor]]) -> None:
        if any(stored):
            self._made_exchange().load(stored)
        elif len(stored) > 1 and any(map(self._has_compressed, self.state.values())):
            raise CheckpointError("the compression errors of all ranks are missing", hint="load another checkpoint")

    def _has_compressed(self, state: Mapping[str, Any]) -> bool:
        """Whether the state of a parameter shows that ranks have exchanged compressed values, or gone alone."""
        return not {"compressed", "fresh", "anchor"}.isdisjoint(state)

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _live(self) -> Live:
        """Each parameter that has a gradient, with its group and its state."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    yield group, parameter, self.state[parameter]

    def _exchanged(self, values: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Average over the ranks. Collective.

        values: by parameter, a tensor of its shape; the same parameters on every rank
        """
        if self._wire.size == 1 and self._exchange is None:
            return dict(values)
        means: list[Tensor | None] = self._made_exchange().mean([values.get(each) for each in self._parameters()])
        return {parameter: mean for parameter, mean in zip(self._parameters(), means, strict=True) if mean is not None}

    def _made_exchange(self) -> Any:
        if self._exchange is None:
            self._exchange = self._new_exchange()
        return self._exchange

    def _new_exchange(self) -> Any:
        parameters = self._parameters()
        return Exchange([each.shape for each in parameters], self._wire, parameters[0].device, self.kernels)


def freeze(variance: Tensor, floor: float) -> None:
    """Raise small variances to a share of their mean, in place.

    An element that had almost no gradient before the freeze, such as one of a rare word's embedding, would take steps
    without bound after it.

    variance: of one parameter
    floor: the share, 0 to 1
    """
    variance.clamp_(min=variance.mean() * floor)


def require_variance(state: Mapping[str, Any], parameter: Tensor) -> None:
    """Raise ConfigError for a parameter whose first gradient comes after variances are frozen."""
    if "exp_avg_sq" not in state:
        raise ConfigError(
            f"a parameter of shape {list(parameter.shape)} has its first gradient after the variance is frozen",
            hint="set a later freeze_step",
        )
