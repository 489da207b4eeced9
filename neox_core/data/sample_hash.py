"""One number that identifies the samples on which a run has been trained."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from neox_core.contracts.objective import Samples

AT_ONCE = 1 << 18
"""Number of samples that are looked up together."""


class Trail:
    """48 bits of a hash of the samples of every step so far: equal hashes mean equal samples.

    per_step: samples of a step; before: those of all steps before one, where steps differ. `at` takes time for the
    samples since the step of the last call.
    """

    def __init__(self, samples: Samples, per_step: int, before: Callable[[int], int] | None = None) -> None:
        self._samples, self._per_step = samples, per_step
        self._before = before or per_step.__mul__
        self._step, self._hash = 0, 0

    def at(self, step: int) -> int:
        """The hash after `step` finished steps, which a float holds exactly. About 0.1 s for a million samples."""
        if step < self._step:
            self._step, self._hash = 0, 0
        together = max(1, AT_ONCE // self._per_step)
        while self._step < step:
            steps = min(together, step - self._step)
            bounds = [self._before(each) for each in range(self._step, self._step + steps + 1)]
            found = self._samples.identify(np.arange(bounds[0], bounds[-1])).astype("<i8", copy=False)
            for each in np.split(found, [bound - bounds[0] for bound in bounds[1:-1]]):
                self._hash = link(self._hash, each.tobytes())
            self._step += steps
        return self._hash


def link(before: int, who: bytes) -> int:
    """The hash after a step with these samples, from the hash before it."""
    digest = hashlib.blake2b(who, digest_size=6, key=before.to_bytes(6, "little"))
    return int.from_bytes(digest.digest(), "little")
