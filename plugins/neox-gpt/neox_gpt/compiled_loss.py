"""The loss of a few tokens by torch.compile."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch

from neox_gpt.loss import loss_and_gradient

if TYPE_CHECKING:
    from neox_gpt.loss import LossAndGradient


class CompiledLoss:
    """`loss_and_gradient` by a compiler. on: whether the model uses it, which may change between two steps.

    backend: of torch.compile.
    """

    def __init__(self, backend: str, *, on: bool) -> None:
        self.backend, self.on = backend, on

    @property
    def function(self) -> LossAndGradient | None:
        """None while it is off."""
        return self._compiled if self.on else None

    @cached_property
    def _compiled(self) -> LossAndGradient:
        compiled: LossAndGradient = torch.compile(loss_and_gradient, backend=self.backend)
        return compiled
