"""1-bit LAMB (arXiv:2104.06069): LAMB until `freeze_step`; then momenta are compressed and trust ratios scaled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neox_onebit.averaging import Averaging, freeze, require_variance
from neox_onebit.wire import Wire

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from neox_onebit.settings import OneBitLambSettings


def one_bit_lamb(
    params: Iterable[dict[str, Any]], settings: OneBitLambSettings, group: ProcessGroup | None = None
) -> torch.optim.Optimizer:
    """Make the optimizer.

    params: groups of parameters, as torch's optimizers take them
    settings: of the optimizer
    group: the ranks that hold the same weights; None for one rank

    Raises ConfigError if the group uses another backend than `settings.comm_backend_name`.
    """
    return OneBitLamb(params, settings, Wire(group, settings))


class OneBitLamb(Averaging):
    """Algorithm 1 of the paper, where a layer is one parameter. A block has its scale, so momenta are not scaled first.

    State of a parameter: `exp_avg`, `exp_avg_sq`, `step`, and `coeff`, the running mean of its trust ratio. After the
    freeze also `fresh`, the variance of the gradients that the momenta imply, and `factor`, which multiplies `coeff`.
    """

    def __init__(self, params: Iterable[dict[str, Any]], settings: OneBitLambSettings, wire: Wire) -> None:
        super().__init__(params, settings, wire)
        self._settings = settings

    def _averaged(self, step: int) -> bool:
        return step <= self._settings.freeze_step

    def _advance(self, step: int) -> None:
        if self._averaged(step):
            for group, parameter, state in self._live():
                self._warm_up(group, parameter, state)
        else:
            self._compressed()

    def _warm_up(self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any]) -> None:
        if not state:
            state["step"], state["coeff"] = 0, torch.zeros((), device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        gradient, (beta1, beta2) = parameter.grad, group["betas"]
        state["step"] += 1
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        size = self._size(group, state["exp_avg_sq"], state["step"])
        update = self._momentum(group, state).div_(size).add_(parameter, alpha=group["weight_decay"])
        ratio = parameter.norm() / update.norm()
        low, high = self._settings.min_coeff, self._settings.max_coeff
        coeff = torch.where(ratio.isfinite() & (ratio > 0), ratio.clamp(low, high), 1.0)
        state["coeff"].lerp_(coeff, 1 - self._settings.coeff_beta)
        parameter.sub_(update.mul_(group["lr"] * coeff))

    def _compressed(self) -> None:
        momenta = {}
        for group, parameter, state in self._live():
            require_variance(state, parameter)
            momenta[parameter] = state["exp_avg"].lerp(parameter.grad, 1 - group["betas"][0])
        momenta = self._exchanged(momenta)
        for group, parameter, state in self._live():
            self._follow(group, parameter, state, momenta[parameter])

    def _follow(self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any], momentum: Tensor) -> None:
        """Make one update from a momentum that all ranks share."""
        beta1, beta2 = group["betas"]
        if "fresh" not in state:
            freeze(state["exp_avg_sq"], self._settings.variance_floor)
            state["fresh"] = state["exp_avg_sq"].clone()
            state["frozen_step"], state["factor"] = state["step"], torch.ones((), device=parameter.device)
        implied = (momentum - beta1 * state["exp_avg"]) / (1 - beta1)
        state["fresh"].mul_(beta2).addcmul_(implied, implied, value=1 - beta2)
        state["exp_avg"].copy_(momentum)
        state["step"] += 1
        size = self._size(group, state["exp_avg_sq"], state["frozen_step"])
        adaptive = self._momentum(group, state).div_(size)
        update = adaptive.add(parameter, alpha=group["weight_decay"])
        factor = (size / self._size(group, state["fresh"], state["step"])).max()
        if group["weight_decay"]:  # of the update, only the adaptive part is larger for a smaller variance
            share = (adaptive.norm() / update.norm()).nan_to_num(1.0).clamp(max=1.0)
            factor = factor * share + 1.0 - share
        most, last = self._settings.factor_threshold, state["factor"]
        factor = factor.clamp(self._settings.factor_min, self._settings.factor_max)
        last.copy_(factor.clamp(last * (1 - most), last * (1 + most)))
        parameter.sub_(update.mul_(group["lr"] * state["coeff"] * last))

    def _momentum(self, group: dict[str, Any], state: dict[str, Any]) -> Tensor:
        """A copy of the momentum, with bias correction if the settings ask for it."""
        corrected = 1 - group["betas"][0] ** state["step"] if self._settings.bias_correction else 1.0
        copy: Tensor = state["exp_avg"] / corrected
        return copy

    def _size(self, group: dict[str, Any], variance: Tensor, updates: int) -> Tensor:
        """The denominator of an update."""
        root = variance.sqrt()
        if self._settings.bias_correction:
            root /= (1 - group["betas"][1] ** updates) ** 0.5
        return root.add_(group["eps"])
