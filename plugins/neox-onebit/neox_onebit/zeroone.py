"""0/1 Adam (arXiv:2202.06009): updates of the variance and exchanges between ranks become less frequent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neox_onebit.averaging import Averaging, freeze, require_variance
from neox_onebit.passes import move
from neox_onebit.wire import Wire

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from neox_onebit.settings import ZeroOneAdamSettings


def zero_one_adam(
    params: Iterable[dict[str, Any]], settings: ZeroOneAdamSettings, group: ProcessGroup | None = None
) -> torch.optim.Optimizer:
    """Make the optimizer.

    params: groups of parameters, as torch's optimizers take them
    settings: of the optimizer
    group: the ranks that hold the same weights; None for one rank

    Raises ConfigError if the group uses another backend than `settings.comm_backend_name`.
    """
    return ZeroOneAdam(params, settings, Wire(group, settings))


def updates_variance(step: int, scaler: int) -> bool:
    """Whether a step updates the variance (the paper's T_v): update j is followed 2^floor(j / scaler) steps later.

    step: counted from 1
    scaler: updates until the interval doubles
    """
    octave = ((step - 1) // scaler + 1).bit_length() - 1
    interval: int = 2**octave
    return (step - 1 - scaler * (interval - 1)) % interval == 0


def exchanges(step: int, scaler: int, longest: int) -> bool:
    """Whether ranks exchange in a step (it is in the paper's T_u): intervals double every `scaler` steps.

    step: counted from 1 after the freeze
    scaler: steps until the interval doubles
    longest: upper bound of the interval, in steps
    """
    octave, place = divmod(step - 1, scaler)
    interval = min(2 ** min(octave, longest.bit_length()), longest)
    return (place + 1) % interval == 0 or place + 1 == scaler  # no interval continues into the next octave


class ZeroOneAdam(Averaging):
    """Algorithm 1 of the paper. Up to `var_freeze_step` each step exchanges; where it updates the variance it needs the
    exact gradient anyway, and takes the momentum of it. After that, ranks go alone between exchanges.

    What is exchanged is the mean momentum since the last time, weighted with the learning rates: u / sum(gamma) in the
    paper's letters, in the units of a momentum, so that errors stay what they are when the learning rate changes.

    State of a parameter: `exp_avg`, `exp_avg_sq`, `step`, `variance_step`: how often each was updated. While ranks go
    alone also `anchor`: the weight at the last exchange, `moved`: u, `rate`: sum(gamma), `keep`: what weight decay has
    left of the anchor.
    """

    def __init__(self, params: Iterable[dict[str, Any]], settings: ZeroOneAdamSettings, wire: Wire) -> None:
        super().__init__(params, settings, wire)
        self._settings = settings

    def _averaged(self, step: int) -> bool:
        return step <= self._settings.var_freeze_step and updates_variance(step, self._settings.var_update_scaler)

    def _advance(self, step: int) -> None:
        averaged = self._averaged(step)
        for group, parameter, state in self._live():
            self._update_moments(group, parameter, state, averaged)
        after = step - self._settings.var_freeze_step
        meet = after < 1 or exchanges(after, self._settings.local_step_scaler, self._settings.local_step_clipper)
        if averaged:
            self._move()
        elif meet and not self._apart():
            self._take({parameter: state["exp_avg"] for _, parameter, state in self._live()})
            self._move()
        else:
            self._move_alone()
            if meet:
                self._meet()

    def own_state(self) -> dict[str, Tensor]:
        own = super().own_state()
        if self._apart():
            parameters, blocks = self._parameters(), self._made_exchange()
            own["weights"] = blocks.laid_out(parameters)[: blocks.rows]
            for name in ("exp_avg", "moved"):
                own[name] = blocks.laid_out([self.state[each].get(name) for each in parameters])[: blocks.rows]
        return own

    @torch.no_grad()
    def load_own_state(self, stored: Sequence[Mapping[str, Tensor]]) -> None:
        super().load_own_state(stored)
        parameters, same = self._parameters(), len(stored) == self._wire.size
        mine = stored[self._wire.rank] if same else stored[0]
        for name in ("weights", "exp_avg", "moved"):
            if name not in mine:
                continue
            blocks = mine[name] if same else torch.stack([each[name] for each in stored]).mean(0)
            for parameter, value in zip(parameters, self._made_exchange().taken_apart(blocks, parameters), strict=True):
                held = parameter if name == "weights" else self.state[parameter].get(name)
                if held is not None:
                    held.copy_(value)

    def _apart(self) -> bool:
        """Whether ranks have gone alone since they last met."""
        return any("anchor" in self.state[parameter] for parameter in self._parameters() if parameter in self.state)

    def _has_compressed(self, state: Mapping[str, Any]) -> bool:
        return super()._has_compressed(state) or state.get("step") != state.get("variance_step")

    def _update_moments(self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any], averaged: bool) -> None:
        if not state:
            state["step"] = state["variance_step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter)
        gradient, (beta1, beta2) = parameter.grad, group["betas"]
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["step"] += 1
        if averaged:
            if "exp_avg_sq" not in state:
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            variance = state["exp_avg_sq"]
            variance.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            freeze(variance, self._settings.variance_floor)  # it stays until the next update
            state["variance_step"] += 1
        require_variance(state, parameter)

    def _rate(self, group: dict[str, Any], state: dict[str, Any]) -> float:
        corrected = 1 - group["betas"][0] ** state["step"] if self._settings.bias_correction else 1.0
        return float(group["lr"] / corrected)

    def _root(self, group: dict[str, Any], state: dict[str, Any]) -> float:
        """What the root of the variance is multiplied with."""
        corrected: float = (1 - group["betas"][1] ** state["variance_step"]) ** -0.5
        return corrected if self._settings.bias_correction else 1.0

    def _take(self, momenta: dict[Tensor, Tensor]) -> None:
        """Exchange momenta; all ranks continue with the result."""
        for parameter, mean in self._exchanged(momenta).items():
            self.state[parameter]["exp_avg"].copy_(mean)

    def _move(self) -> None:
        for group, parameter, state in self._live():
            kept, rate = 1 - group["lr"] * group["weight_decay"], self._rate(group, state)
            root = self._root(group, state)
            move(parameter, state["exp_avg"], state["exp_avg_sq"], kept, rate, root, group["eps"])

    def _move_alone(self) -> None:
        for group, parameter, state in self._live():
            if "anchor" not in state:
                state["anchor"], state["moved"] = parameter.detach().clone(), torch.zeros_like(parameter)
                state["rate"], state["keep"] = 0.0, 1.0
            rate, keep = self._rate(group, state), 1 - group["lr"] * group["weight_decay"]
            state["moved"].mul_(keep).add_(state["exp_avg"], alpha=rate)
            state["rate"] = keep * state["rate"] + rate
            state["keep"] *= keep
        self._move()

    def _meet(self) -> None:
        """Undo what each rank did alone, and do the mean of it."""
        sent, apart = {}, [(each, self.state[each]) for each in self._parameters() if "anchor" in self.state[each]]
        for parameter, state in apart:
            rate = state["rate"]  # 0 where the learning rate was: then the momentum itself has to do
            sent[parameter] = state["moved"] / rate if rate else state["exp_avg"]
        self._take(sent)
        groups = {parameter: group for group in self.param_groups for parameter in group["params"]}
        for parameter, state in apart:
            group, kept, rate = groups[parameter], state.pop("keep"), state.pop("rate")
            parameter.copy_(state.pop("anchor"))
            move(parameter, state["exp_avg"], state["exp_avg_sq"], kept, rate, self._root(group, state), group["eps"])
            del state["moved"]
