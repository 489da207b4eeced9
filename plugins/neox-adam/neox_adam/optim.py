"""Adam in torch's implementations. Elementwise, so flat slices of the parameters do as well as the parameters."""

from collections.abc import Iterable
from typing import Any

import torch

from neox_adam.settings import AdamSettings, AdamWSettings


def adamw(params: Iterable[dict[str, Any]], settings: AdamWSettings) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay: every step first shrinks a weight by lr * weight_decay of itself."""
    return torch.optim.AdamW(params, **_options(settings))


def adam(params: Iterable[dict[str, Any]], settings: AdamSettings) -> torch.optim.Optimizer:
    """AdamW, or with adam_w_mode false the older form that adds weight_decay * weight to the gradient."""
    if settings.adam_w_mode:
        return adamw(params, settings)
    return torch.optim.Adam(params, **_options(settings))


def _options(settings: AdamWSettings) -> dict[str, Any]:
    return {
        "lr": settings.lr,
        "betas": settings.betas,
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "fused": not settings.torch_adam,
    }
