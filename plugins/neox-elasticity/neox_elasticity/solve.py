"""The batch that divides over the most numbers of ranks, as DeepSpeed's elasticity 0.1 and 0.2 chooses it. Light."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isqrt, lcm

from attrs import frozen

from neox_elasticity.settings import ElasticityBlock

# fmt: off
HIGHLY_COMPOSITE = (
    1, 2, 4, 6, 12, 24, 36, 48, 60, 120, 180, 240, 360, 720, 840, 1260, 1680, 2520, 5040, 7560, 10080, 15120, 20160,
    25200, 27720, 45360, 50400, 55440, 83160, 110880, 166320, 221760, 277200, 332640, 498960, 554400, 665280, 720720,
)
# fmt: on
"""Numbers with more divisors than every smaller one (OEIS A002182)."""


@frozen
class Fit:
    """A batch in samples, and the numbers of copies of the model that it divides over, in ascending order."""

    batch: int
    copies: tuple[int, ...]


def solve(block: ElasticityBlock) -> Fit:
    """The batch of a block, by the version that it names. Raises ValueError where no batch fits."""
    micro, most, large = block.micro_batch_sizes, block.max_train_batch_size, block.prefer_large_batch
    if block.version == 0.1:
        return of_copies(micro, most, block.min_gpus, block.max_gpus, large=large)
    nodes = block.num_gpus_per_node
    per_node = nodes // block.model_parallel_size
    found = of_copies(micro, most // per_node, block.min_gpus // nodes, block.max_gpus // nodes, large=large)
    return Fit(found.batch * per_node, tuple(count * per_node for count in found.copies))


def of_copies(micro: Sequence[int], most: int, fewest_copies: int, most_copies: int, *, large: bool) -> Fit:
    """The batch of at most `most` samples that the most numbers of copies can share.

    A candidate is a micro-batch, or the least common multiple of all, times the largest highly composite number that
    `most` leaves room for. Of several with as many numbers the largest counts, or the smallest where `large` is False.
    micro: sizes of micro-batches. fewest_copies, most_copies: bounds; 0: none.
    """
    if max(micro) > most:
        raise ValueError(f"a micro-batch of {max(micro)} is more than {most}")
    low, high = fewest_copies or 1, most_copies or most // min(micro)
    fits = [Fit(batch, sharing(batch, micro, low, high)) for batch in _candidates(micro, most)]
    best = max(fits, key=lambda fit: (len(fit.copies), fit.batch if large else -fit.batch))
    if not best.copies:
        raise ValueError(f"no batch of at most {most} samples fits")
    return best


def sharing(batch: int, micro: Iterable[int], low: int, high: int) -> tuple[int, ...]:
    """The numbers of copies from `low` to `high` of which each gets whole micro-batches of one of the sizes."""
    sizes = [size for size in set(micro) if batch % size == 0]
    counts = (count for count in _divisors(batch) if low <= count <= high)
    return tuple(count for count in counts if any(batch % (count * size) == 0 for size in sizes))


def micro_batch(batch: int, copies: int, micro: Iterable[int]) -> int:
    """The largest micro-batch of which a copy's share is a multiple; `copies` is one of the numbers that fit."""
    return max(size for size in micro if batch // copies % size == 0)


def other_batch(block: ElasticityBlock, copies: int) -> int:
    """The batch that version 0.2 takes on a number of copies that its own batch does not fit; 0: none.

    The largest multiple of a micro-batch on all copies that is not above the largest batch, over all micro-batches; the
    smallest of these where `prefer_large_batch` is false.
    """
    steps = (size * copies for size in block.micro_batch_sizes)
    found = [block.max_train_batch_size // step * step for step in steps]
    return max(found) if block.prefer_large_batch else min(found)


def _candidates(micro: Sequence[int], most: int) -> set[int]:
    bases = {each for each in (*micro, lcm(*micro)) if each <= most}
    return {base * max(number for number in HIGHLY_COMPOSITE if number <= most // base) for base in bases}


def _divisors(number: int) -> list[int]:
    small = [each for each in range(1, isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})
