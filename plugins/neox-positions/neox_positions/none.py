"""No position, and what the others inherit for the stages at which they do nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

if TYPE_CHECKING:
    import torch
    from neox_gpt.api import PositionShape, ScoreBias


class NoPosition(nn.Module):
    """Passes everything through."""

    no_weight_decay: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, shape: PositionShape, settings: Any) -> None:
        super().__init__()
        self.shape = shape

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        return hidden

    def prepare(self, positions: Tensor, dtype: torch.dtype) -> Any:
        return None

    def rotate(self, query: Tensor, key: Tensor, prepared: Any) -> tuple[Tensor, Tensor]:
        return query, key

    def score_bias(self, prepared: Any) -> ScoreBias | None:
        return None
