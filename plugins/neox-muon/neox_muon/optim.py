"""Muon (K. Jordan 2024, https://kellerjordan.github.io/posts/muon/; Liu et al. 2025, arXiv:2502.16982), torch's.

It is for the matrices between hidden states. Embeddings, the head and what has another number of dimensions are
stepped by torch's fused AdamW.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from neox_muon.settings import MuonSettings


class MatrixAndRest(torch.optim.Optimizer):
    """torch.optim.Muon and torch.optim.AdamW as one optimizer, each over groups of its own.

    A group of both is split in two. State of a matrix: `momentum_buffer`; of the rest: AdamW's.
    """

    def __init__(self, params: Iterable[dict[str, Any]], settings: MuonSettings) -> None:
        common = {"lr": settings.lr, "weight_decay": settings.weight_decay}
        muon = {
            "momentum": settings.momentum,
            "nesterov": settings.nesterov,
            "ns_steps": settings.ns_steps,
            "adjust_lr_fn": settings.adjust_lr,
        }
        adamw = {"betas": settings.betas, "eps": settings.eps, "fused": True}
        matrices, rest = _parted(params)
        self._parts: list[torch.optim.Optimizer] = []
        if matrices:
            self._parts.append(torch.optim.Muon(matrices, **common, **muon))
        if rest:
            self._parts.append(torch.optim.AdamW(rest, **common, **adamw))
        super().__init__([group for part in self._parts for group in part.param_groups], {})

    @torch.no_grad()
    def step(self) -> None:
        groups = list(self.param_groups)
        for part in self._parts:  # in the order of their groups; whoever wraps this object may have put others here
            mine, groups = groups[: len(part.param_groups)], groups[len(part.param_groups) :]
            part.param_groups, part.state = mine, self.state
            part.step()


def _parted(params: Iterable[Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The groups of the matrices and those of the rest; none is empty."""
    groups = [each if isinstance(each, dict) else {"params": [each]} for each in params]
    found: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for group in groups:
        for parts, wanted in zip(found, (True, False), strict=True):
            mine = [each for each in group["params"] if _is_matrix(each) is wanted]
            if mine:
                parts.append({**group, "params": mine})
    return found


def _is_matrix(parameter: Tensor) -> bool:
    return parameter.ndim == 2 and not getattr(parameter, "is_table", False)
