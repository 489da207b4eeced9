"""A checkpoint whose model changes are folded into the weights of the layers."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING

import torch
from attrs import evolve
from torch import Tensor

from neox_core.checkpoint.read import CheckpointReader
from neox_gpt.build import build_on_meta
from neox_gpt.changes import Changes
from neox_gpt.config.plan import ADDED
from neox_gpt.linear import ColumnLinear, RowLinear
from neox_gpt.shrink import Cutting, shrink

if TYPE_CHECKING:
    from pathlib import Path

    from neox_gpt.config.plan import GPTPlan


class FoldedReader(CheckpointReader):
    """Reads a checkpoint of a run of `plan` as one of `self.plan`: the same model without model changes, and without
    the units that they leave out.

    Each weight is folded when it is asked for. Raises ConfigError for a change that cannot be folded in.
    """

    def __init__(self, folder: Path, plan: GPTPlan) -> None:
        super().__init__(folder)
        self.plan = evolve(plan, changes=None)
        self._changes = Changes(plan)
        self._layers: dict[str, ColumnLinear | RowLinear] = {}
        self._cuttings: dict[str, Cutting] = {}
        if plan.changes:
            stored = super().shapes("weight")
            model = build_on_meta(plan, stored["embedding.weight"][0])
            for name, module in model.named_modules():
                if isinstance(module, ColumnLinear | RowLinear) and module.changes is not None:
                    self._layers[f"{name}.weight"] = module
                    with torch.device("meta"):  # whether it can be folded, before anything is read
                        self._changes.fold(module, name, lambda each: torch.empty(stored[each]))
            read = partial(self._stored, "weight")
            found = {at: self._changes.kept(each, at, read) for at, each in self._modules()}
            kept = {at: units for at, units in found.items() if units is not None}
            self.plan, self._cuttings = shrink(self.plan, kept)

    def _modules(self) -> list[tuple[str, ColumnLinear | RowLinear]]:
        """The layers that are changed, by their names."""
        return [(name.removesuffix(".weight"), each) for name, each in self._layers.items()]

    def shapes(self, kind: str) -> dict[str, tuple[int, ...]]:
        """Shape by name of every tensor of one kind, without what changes have added."""
        stored = {name: shape for name, shape in super().shapes(kind).items() if not self._layers or ADDED not in name}
        return {name: self._shape(name, shape) for name, shape in stored.items()}

    def tensor_shape(self, kind: str, name: str, state: str | None = None) -> tuple[int, ...]:
        """Shape of a whole tensor, of what stays of it."""
        return self._shape(name, super().tensor_shape(kind, name, state))

    def _shape(self, name: str, stored: tuple[int, ...]) -> tuple[int, ...]:
        return self._cuttings[name].shape(stored) if name in self._cuttings else stored

    def tensor(self, kind: str, name: str, state: str | None = None) -> Tensor:
        """A whole tensor, on the CPU."""
        at, _, part = name.rpartition(".")
        layer = self._layers.get(f"{at}.weight") if kind == "weight" and part in ("weight", "bias") else None
        if layer is None:
            found = self._stored(kind, name, state)
        else:
            fold = self._changes.fold if part == "weight" else self._changes.fold_bias
            found = fold(layer, at, lambda each: self._stored("weight", each))
        return self._cuttings[name].of(found) if name in self._cuttings else found

    def _stored(self, kind: str, name: str, state: str | None = None) -> Tensor:
        """A tensor of the checkpoint as it is, which `CheckpointReader.tensor` reads with `tensor_shape`."""
        whole = super().tensor_shape(kind, name, state)
        return self.flat(kind, name, state, 0, prod(whole)).reshape(whole)
