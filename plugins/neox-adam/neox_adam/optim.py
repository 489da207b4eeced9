"""Adam in torch's implementations. It is elementwise, so it also steps flat slices of the parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam as by_torch

from neox_adam.settings import AdamSettings, AdamWSettings


def adamw(params: Iterable[dict[str, Any]], settings: AdamWSettings) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay: every step first shrinks a weight by lr * weight_decay of itself."""
    return Adam(params, settings, decoupled=True)


def adam(params: Iterable[dict[str, Any]], settings: AdamSettings) -> torch.optim.Optimizer:
    """AdamW, or with adam_w_mode false the older form that adds weight_decay * weight to the gradient."""
    return Adam(params, settings, decoupled=settings.adam_w_mode)


_STEP = torch.optim.Adam.step


def _unwrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of torch without its guard against torch's compiler: that imports the compiler, which takes a second."""
    plain: Callable[..., Any] = inspect.unwrap(method)
    return plain


class Adam(torch.optim.Adam):
    """torch's Adam, or one parameter at a time by the kernel for `adam_step` where one was chosen, with equal state."""

    def __init__(self, params: Iterable[dict[str, Any]], settings: AdamWSettings, *, decoupled: bool) -> None:
        super().__init__(
            params,
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            decoupled_weight_decay=decoupled,
            fused=not settings.torch_adam,
        )
        self.kernels: Mapping[str, Callable[..., Any]] = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, and imports no compiler."""
        _unwrapped(torch.optim.Adam.add_param_group)(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        _unwrapped(torch.optim.Adam.zero_grad)(self, set_to_none)

    def state_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = _unwrapped(torch.optim.Adam.state_dict)(self)
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        _unwrapped(torch.optim.Adam.load_state_dict)(self, state_dict)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        kernel = self.kernels.get("adam_step")
        if kernel is None:
            return _unwrapped(_STEP)(self, closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            options = [group[name] for name in ("lr", "betas", "eps", "weight_decay", "decoupled_weight_decay")]
            for weight in group["params"]:
                if weight.grad is not None:
                    state = _begun(weight, self.state[weight])
                    state["step"] += 1
                    moments = state["exp_avg"], state["exp_avg_sq"]
                    compute = kernel if weight.is_contiguous() else adam_step
                    compute(weight, weight.grad, *moments, int(state["step"]), *options)
        return loss


def adam_step(
    weight: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The op: a step, counted from 1, of a parameter and its moments, in place. Returns what it changed."""
    by_torch(
        [weight],
        [grad],
        [mean],
        [square],
        [],
        [torch.tensor(step - 1.0)],
        foreach=False,
        fused=False,
        amsgrad=False,
        beta1=betas[0],
        beta2=betas[1],
        lr=lr,
        weight_decay=weight_decay,
        eps=eps,
        maximize=False,
        decoupled_weight_decay=decoupled,
    )
    return weight, mean, square


def _begun(weight: Tensor, state: dict[str, Any]) -> dict[str, Any]:
    """The state of a parameter, with its steps counted on the host: a loaded count may be on the GPU."""
    if not state:
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
    state["step"] = state["step"].cpu() if "step" in state else torch.zeros(())
    return state
