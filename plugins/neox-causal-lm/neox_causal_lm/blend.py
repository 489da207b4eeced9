"""The order in which several datasets take turns: GPT-NeoX's, a pure function of their weights.

Sample k comes from the dataset that lags most behind its share of the k samples before it.
Source: megatron/data/helpers.cpp (build_blending_indices) and data_utils.py of GPT-NeoX.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen
from neox_kernels.api import native

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_DATASETS = 254
SPARE = 1.005
"""GPT-NeoX makes each dataset longer than its share by this factor, so that the blend can draw ahead."""
SOURCE = Path(__file__).with_name("blend.cpp")
WORTH_COMPILING = 1 << 20
"""Number of samples for which Python takes about as long as the compiler."""


@frozen(eq=False)
class Blend:
    """turns: uint8 [samples], the dataset of each sample. places: int64 [samples], its index in that dataset."""

    turns: NDArray[np.uint8]
    places: NDArray[np.int64]


def normalise(weights: Sequence[float]) -> list[float]:
    """The weights scaled so that they add up to 1."""
    total = sum(weights)
    return [weight / total for weight in weights]


def build_blend(weights: Sequence[float], num_samples: int, compile_from: int = WORTH_COMPILING) -> Blend:
    """The first `num_samples` turns. `weights` add up to 1; the turns of fewer samples are a prefix of these.

    Compiled code computes `compile_from` samples or more, Python fewer; without a compiler Python computes all.
    """
    library = native(SOURCE, "-ffp-contract=off") if num_samples >= compile_from else None
    if library is None:
        return _in_python(list(weights), num_samples)
    shares: NDArray[np.float64] = np.array(weights, dtype=np.float64)
    blend = Blend(np.empty(num_samples, dtype=np.uint8), np.empty(num_samples, dtype=np.int64))
    into = (c_void_p(blend.turns.ctypes.data), c_void_p(blend.places.ctypes.data))
    library.blend(c_void_p(shares.ctypes.data), c_int64(len(shares)), c_int64(num_samples), *into)
    return blend


def samples_of_each(weights: Sequence[float], turns: NDArray[Any]) -> list[int]:
    """The number of samples that each dataset must hold: that of GPT-NeoX, or the number taken from it if that is
    larger.
    """
    taken = np.bincount(turns, minlength=len(weights))
    wanted = (math.ceil(len(turns) * weight * SPARE) for weight in weights)
    return [max(here, int(there)) for here, there in zip(wanted, taken, strict=True)]


def weights_by_documents(counts: Sequence[int], alpha: float) -> list[float]:
    """Weights from numbers of documents, whose shares are p: proportional to p^alpha (1 - p), as in GPT-NeoX.

    alpha below 1 favours small datasets (arXiv:1911.02116).
    """
    if len(counts) == 1:
        return [1.0]
    powers = normalise([share**alpha for share in normalise(counts)])
    return normalise([power * (1 - share) for power, share in zip(powers, normalise(counts), strict=True)])


def _in_python(weights: list[float], num_samples: int) -> Blend:
    """The same turns as blend.cpp."""
    taken = [0] * len(weights)
    turns, places = bytearray(num_samples), array("q", bytes(8 * num_samples))
    others = range(1, len(weights))
    for sample in range(num_samples):
        before = sample or 1
        most, furthest = weights[0] * before - taken[0], 0
        for dataset in others:
            lag = weights[dataset] * before - taken[dataset]
            if lag > most:
                most, furthest = lag, dataset
        turns[sample], places[sample] = furthest, taken[furthest]
        taken[furthest] += 1
    return Blend(np.frombuffer(turns, dtype=np.uint8), np.frombuffer(places, dtype=np.int64))
