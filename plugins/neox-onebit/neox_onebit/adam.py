"""1-bit Adam (arXiv:2102.02888): Adam until `freeze_step`; then the variance is frozen and momenta are compressed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.adamw import adamw

from neox_onebit.averaging import Averaging, freeze, require_variance
from neox_onebit.passes import move
from neox_onebit.wire import Wire

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from neox_onebit.settings import OneBitAdamSettings


def one_bit_adam(
    params: Iterable[dict[str, Any]], settings: OneBitAdamSettings, group: ProcessGroup | None = None
) -> torch.optim.Optimizer:
    """Make the optimizer in the form that `settings.compatibility` names.

    params: groups of parameters, as torch's optimizers take them
    settings: of the optimizer
    group: the ranks that hold the same weights; None for one rank

    Raises ConfigError if the group uses another backend than `settings.comm_backend_name`.
    """
    if settings.compatibility == "deepspeed":
        from neox_onebit.like_deepspeed import LikeDeepSpeed  # builds on this module

        return LikeDeepSpeed(params, settings, Wire(group, settings))
    return OneBitAdam(params, settings, Wire(group, settings))


class OneBitAdam(Averaging):
    """Algorithm 1 of the paper, with bias correction and with decoupled weight decay, as in the AdamW of its warm-up.

    Its state is that of torch's AdamW, where `step` counts the updates of the variance, and `compressed`, which counts
    the steps since the variance was frozen.
    """

    def __init__(self, params: Iterable[dict[str, Any]], settings: OneBitAdamSettings, wire: Wire) -> None:
        super().__init__(params, settings, wire)
        self._freeze_step, self._floor = settings.freeze_step, settings.variance_floor

    def _averaged(self, step: int) -> bool:
        return step <= self._freeze_step

    def _advance(self, step: int) -> None:
        if self._averaged(step):
            self._warm_up()
        else:
            self._compressed()

    def _warm_up(self) -> None:
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            for parameter in parameters:
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                state["step"] = state["step"].to(parameter.device)  # a checkpoint leaves it on the host
            states = [self.state[parameter] for parameter in parameters]
            adamw(
                parameters,
                [parameter.grad for parameter in parameters],
                *([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq")),
                [],
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )

    def _compressed(self) -> None:
        momenta = {}
        for group, parameter, state in self._live():
            require_variance(state, parameter)
            if "compressed" not in state:
                freeze(state["exp_avg_sq"], self._floor)
            momenta[parameter] = state["exp_avg"].lerp_(parameter.grad, 1 - group["betas"][0])
        momenta = self._exchanged(momenta)
        for group, parameter, state in self._live():
            state["exp_avg"].copy_(momenta[parameter])
            state["compressed"] = state.get("compressed", 0) + 1
            beta1, beta2 = group["betas"]
            state["step"] = state["step"].cpu()  # once, since reading it from a GPU in each step would wait for the GPU
            updates = float(state["step"])
            rate, root = group["lr"] / (1 - beta1 ** (updates + state["compressed"])), (1 - beta2**updates) ** -0.5
            kept = 1 - group["lr"] * group["weight_decay"]
            move(parameter, state["exp_avg"], state["exp_avg_sq"], kept, rate, root, group["eps"])
