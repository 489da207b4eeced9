"""A checkpoint whose model changes are folded into the weights of the layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from attrs import evolve
from torch import Tensor

from neox_core.checkpoint.read import CheckpointReader
from neox_gpt.build import build_on_meta
from neox_gpt.changes import Changes
from neox_gpt.config.plan import ADDED
from neox_gpt.linear import ColumnLinear, RowLinear

if TYPE_CHECKING:
    from pathlib import Path

    from neox_gpt.config.plan import GPTPlan


class FoldedReader(CheckpointReader):
    """Reads a checkpoint of a run of `plan` as one of `self.plan`, the same model without model changes.

    Each weight is folded when it is asked for. Raises ConfigError for a change that cannot be folded in.
    """

    def __init__(self, folder: Path, plan: GPTPlan) -> None:
        super().__init__(folder)
        self.plan = evolve(plan, changes=None)
        self._changes = Changes(plan)
        self._layers: dict[str, ColumnLinear | RowLinear] = {}
        if plan.changes:
            stored = super().shapes("weight")
            model = build_on_meta(plan, stored["embedding.weight"][0])
            for name, module in model.named_modules():
                if isinstance(module, ColumnLinear | RowLinear) and module.changes is not None:
                    self._layers[f"{name}.weight"] = module
                    with torch.device("meta"):  # whether it can be folded, before anything is read
                        self._changes.fold(module, name, lambda each: torch.empty(stored[each]))

    def shapes(self, kind: str) -> dict[str, tuple[int, ...]]:
        """Shape by name of every tensor of one kind, without what changes have added."""
        return {name: shape for name, shape in super().shapes(kind).items() if not self._layers or ADDED not in name}

    def tensor(self, kind: str, name: str, state: str | None = None) -> Tensor:
        """A whole tensor, on the CPU."""
        at, _, part = name.rpartition(".")
        layer = self._layers.get(f"{at}.weight") if kind == "weight" and part in ("weight", "bias") else None
        if layer is None:
            return super().tensor(kind, name, state)
        fold, read = self._changes.fold if part == "weight" else self._changes.fold_bias, super().tensor
        return fold(layer, at, lambda each: read("weight", each))
