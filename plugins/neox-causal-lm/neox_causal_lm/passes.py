"""The samples of one pass over the data, read again and again in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from neox_core.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from neox_causal_lm.samples import Samples


class Passes:
    """The first `per_pass` of `samples`, `wanted` times in all. Raises DataError for a pass that has fewer."""

    def __init__(self, samples: Samples, per_pass: int, wanted: int) -> None:
        if per_pass > len(samples):
            raise DataError(
                f"samples-per-pass is {per_pass:,}, and a pass over the training data has {len(samples):,} samples",
                hint="lower it, or remove it; with train_epochs it is counted again",
            )
        self._all, self._per_pass, self._wanted = samples, per_pass, wanted
        self.notes = samples.notes

    def __len__(self) -> int:
        return self._wanted

    def read(self, index: int, into: NDArray[np.int64]) -> None:
        self._all.read(index % self._per_pass, into)

    def identify(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._all.identify(indices % self._per_pass)

    def in_words(self) -> Sequence[str]:
        return [*self._all.in_words(), f"{self._wanted / self._per_pass:.2f} passes over {self._per_pass:,} of them"]
