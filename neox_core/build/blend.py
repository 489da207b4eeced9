"""In which order several datasets take turns: GPT-NeoX's, a pure function of their weights.

Sample k comes from the dataset that lags most behind its share of the k samples before it.
Source: megatron/data/helpers.cpp (build_blending_indices) and data_utils.py of GPT-NeoX.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_DATASETS = 254
SPARE = 1.005
"""GPT-NeoX makes each dataset this much longer than its share, for the blend to be able to draw ahead."""


@frozen(eq=False)
class Blend:
    """turns: uint8 [samples], the dataset of each sample. places: int64 [samples], which of that dataset's it is."""

    turns: NDArray[np.uint8]
    places: NDArray[np.int64]


def normalise(weights: Sequence[float]) -> list[float]:
    """The shares of the datasets, which add up to 1."""
    total = sum(weights)
    return [weight / total for weight in weights]


def build_blend(weights: Sequence[float], num_samples: int) -> Blend:
    """The first `num_samples` turns. `weights` add up to 1; the turns of fewer samples are the beginning of these."""
    turns = _turns(list(weights), num_samples)
    places: NDArray[np.int64] = np.empty(num_samples, dtype=np.int64)
    for dataset in range(len(weights)):
        mine = np.flatnonzero(turns == dataset)
        places[mine] = np.arange(len(mine))
    return Blend(turns, places)


def samples_of_each(weights: Sequence[float], turns: NDArray[Any]) -> list[int]:
    """How many samples each dataset has to hold: as many as GPT-NeoX makes, or as are taken from it if that is more."""
    taken = np.bincount(turns, minlength=len(weights))
    wanted = (math.ceil(len(turns) * weight * SPARE) for weight in weights)
    return [max(here, int(there)) for here, there in zip(wanted, taken, strict=True)]


def weights_by_documents(counts: Sequence[int], alpha: float) -> list[float]:
    """Weights from numbers of documents, whose shares are p: proportional to p^alpha (1 - p), as GPT-NeoX has it.

    alpha below 1 favours small datasets (arXiv:1911.02116).
    """
    if len(counts) == 1:
        return [1.0]
    powers = normalise([share**alpha for share in normalise(counts)])
    return normalise([power * (1 - share) for power, share in zip(powers, normalise(counts), strict=True)])


def _turns(weights: list[float], num_samples: int) -> NDArray[np.uint8]:
    taken = [0] * len(weights)
    turns = bytearray(num_samples)
    others = range(1, len(weights))
    for sample in range(num_samples):
        before = sample or 1
        most, furthest = weights[0] * before - taken[0], 0
        for dataset in others:
            lag = weights[dataset] * before - taken[dataset]
            if lag > most:
                most, furthest = lag, dataset
        taken[furthest] += 1
        turns[sample] = furthest
    return np.frombuffer(turns, dtype=np.uint8)
