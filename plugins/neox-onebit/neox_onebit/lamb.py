"""1-bit LAMB (arXiv:2104.06069): LAMB up to `freeze_step`, then compressed momenta and trust ratios that follow."""

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
    """group: of the ranks that hold the same weights. Raises ConfigError when it has not the backend that is named."""
    return OneBitLamb(params, settings, Wire(group, settings))


class OneBitLamb(Averaging):
    """Algorithm 1 of the paper. A layer is a parameter; blocks have scales of their own, so momenta need no others.

    State of a parameter: `exp_avg`, `exp_avg_sq`, `step`, `coeff`: the running mean of its trust ratio; from the freeze
    on `fresh`: the variance as it would be, of the gradients that momenta imply, and `factor`: on the trust ratio.
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
        """One update by a momentum that all ranks have."""
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
        """A copy, corrected for its start where that is asked for."""
        corrected = 1 - group["betas"][0] ** state["step"] if self._settings.bias_correction else 1.0
        copy: Tensor = state["exp_avg"] / corrected
        return copy

    def _size(self, group: dict[str, Any], variance: Tensor, updates: int) -> Tensor:
        """What a momentum is divided by."""
        root = variance.sqrt()
        if self._settings.bias_correction:
            root /= (1 - group["betas"][1] ** updates) ** 0.5
        return root.add_(group["eps"])
