"""The samples of one pass over the data, read again and again in the same order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neox_core.data.samples import OtherOrder
from neox_core.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from neox_causal_lm.samples import Samples


class Passes(OtherOrder):
    """The first `per_pass` samples of one pass, `wanted` times in all. Raises DataError for a pass that has fewer."""

    def __init__(self, samples: Samples, per_pass: int, wanted: int) -> None:
        super().__init__(samples)
        if per_pass > len(samples):
            raise DataError(
                f"samples-per-pass is {per_pass:,}, and a pass over the training data has {len(samples):,} samples",
                hint="lower it, or remove it; with train_epochs it is counted again",
            )
        self._per_pass, self._wanted = per_pass, wanted

    def __len__(self) -> int:
        return self._wanted

    def which(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return indices % self._per_pass
