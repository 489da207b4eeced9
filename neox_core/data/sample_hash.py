"""Which samples a run has been trained on, as one number."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neox_core.data.dataset import Samples

AT_ONCE = 1 << 18
"""Samples that are looked up together."""


class Trail:
    """48 bits of a hash that goes over the samples of every step, from the first on: equal hashes, equal samples.

    per_step: samples of a step. Asking for one step after another costs what lies between them.
    """

    def __init__(self, samples: Samples, per_step: int) -> None:
        self._samples, self._per_step = samples, per_step
        self._step, self._hash = 0, 0

    def at(self, step: int) -> int:
        """After `step` finished steps. About 0.1 s for a million samples; a float holds it."""
        if step < self._step:
            self._step, self._hash = 0, 0
        together = max(1, AT_ONCE // self._per_step)
        while self._step < step:
            steps = min(together, step - self._step)
            who = self._samples.who(self._step * self._per_step, steps * self._per_step)
            for each in who.reshape(steps, -1):
                self._hash = link(self._hash, each.tobytes())
            self._step += steps
        return self._hash


def link(before: int, who: bytes) -> int:
    """The hash after a step with these samples, from the one before it."""
    digest = hashlib.blake2b(who, digest_size=6, key=before.to_bytes(6, "little"))
    return int.from_bytes(digest.digest(), "little")
