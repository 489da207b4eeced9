"""The order in which the tokens of a dataset are read: GPT-NeoX's, in vectorised numpy.

The documents of all epochs are shuffled together and laid end to end. The stream is cut into samples of seq_length + 1
tokens, the last of which is the first of the next sample, and the samples are shuffled again.
Source: megatron/data/gpt2_dataset.py and helpers.cpp of GPT-NeoX.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

if TYPE_CHECKING:
    from numpy.typing import NDArray


AT_ONCE = 1 << 15
"""Number of documents that are processed together: their arrays fit into the cache of a core."""


@frozen(eq=False)
class SampleOrder:
    """The order of one split.

    documents: int32 [epochs * documents], document at each position of the stream.
    samples: int64 [samples + 1, 2], (position in `documents`, offset in that document) of the first token of each
        sample; the last row is the end of the last sample.
    shuffle: unsigned [samples], the sample that is read at each index.
    """

    documents: NDArray[np.int32]
    samples: NDArray[np.int64]
    shuffle: NDArray[Any]

    def __len__(self) -> int:
        return len(self.shuffle)

    @property
    def nbytes(self) -> int:
        """The memory of the order, in bytes."""
        size: int = self.documents.nbytes + self.samples.nbytes + self.shuffle.nbytes
        return size

    def starts(self, indices: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """(document, offset) of the first token of each of the samples at `indices`: int64 [indices, 2]."""
        starts: NDArray[np.int64] = self.samples[self.shuffle[indices]]
        return np.stack([self.documents[starts[:, 0]], starts[:, 1]], axis=1)

    def pieces(self, index: int) -> Iterator[tuple[int, int, int | None]]:
        """(document, offset, length; None: to its end) of each piece of sample `index`."""
        sample = int(self.shuffle[index])
        (first, offset), (last, end) = self.samples[sample].tolist(), self.samples[sample + 1].tolist()
        if first == last:
            yield int(self.documents[first]), offset, end - offset + 1
            return
        yield int(self.documents[first]), offset, None
        for place in range(first + 1, last):
            yield int(self.documents[place]), 0, None
        yield int(self.documents[last]), 0, end + 1


@frozen(eq=False)
class LongerOrder:
    """Orders one after the other: that of a run, and those by which it was extended."""

    parts: tuple[SampleOrder, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def nbytes(self) -> int:
        """The memory of the order, in bytes."""
        return sum(part.nbytes for part in self.parts)

    def starts(self, indices: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """As `SampleOrder.starts`."""
        starts: NDArray[np.int64] = np.empty((len(indices), 2), dtype=np.int64)
        first = 0
        for part in self.parts:
            mine = (indices >= first) & (indices < first + len(part))
            starts[mine] = part.starts(indices[mine] - first)
            first += len(part)
        return starts

    def pieces(self, index: int) -> Iterator[tuple[int, int, int | None]]:
        """As `SampleOrder.pieces`."""
        first = 0
        for part in self.parts[:-1]:
            if index < first + len(part):
                return part.pieces(index - first)
            first += len(part)
        return self.parts[-1].pieces(index - first)


def build_order(
    sizes: NDArray[np.integer[Any]],
    documents: NDArray[np.integer[Any]],
    seq_length: int,
    num_samples: int,
    seed: int,
    part: int = 0,
) -> SampleOrder:
    """At least `num_samples` samples of `documents`, in whole epochs. `sizes`: tokens of every document of the dataset.

    part: 0 for GPT-NeoX's order; 1, 2, ... for extensions of a longer run, each with an order of its own.
    Beyond the three arrays it needs a fixed amount of memory. Raises ValueError when the documents hold no token.
    """
    tokens = count_tokens(sizes, documents)
    num_epochs = count_epochs(tokens, seq_length, num_samples)
    rng = np.random.RandomState([seed, part] if part else seed)
    stream = np.tile(documents.astype(np.int32), num_epochs)
    rng.shuffle(stream)
    samples = _sample_starts(sizes, stream, seq_length, tokens * num_epochs)
    count = len(samples) - 1
    shuffle: NDArray[Any] = np.arange(count, dtype=np.uint32 if count < np.iinfo(np.uint32).max - 1 else np.int64)
    rng.shuffle(shuffle)
    return SampleOrder(stream, samples, shuffle)


def count_tokens(sizes: NDArray[np.integer[Any]], documents: NDArray[np.integer[Any]]) -> int:
    """Tokens of an epoch. Raises ValueError when there are no tokens."""
    tokens = sum(int(sizes[part].sum(dtype=np.int64)) for part in _parts(documents))
    if tokens == 0:
        raise ValueError("no tokens")
    return tokens


def count_epochs(tokens_per_epoch: int, seq_length: int, num_samples: int) -> int:
    """Epochs that hold `num_samples` samples: each takes seq_length tokens, and the very last one token more."""
    return max(1, -(-(num_samples * seq_length + 1) // tokens_per_epoch))


def _sample_starts(
    sizes: NDArray[np.integer[Any]], stream: NDArray[np.int32], seq_length: int, total: int
) -> NDArray[np.int64]:
    """(position in `stream`, offset) of the start of each sample, and of the end of the last. total: tokens of
    `stream`.
    """
    starts: NDArray[np.int64] = np.empty(((total - 1) // seq_length + 1, 2), dtype=np.int64)
    bounds: NDArray[np.int64] = np.zeros(AT_ONCE + 1, dtype=np.int64)  # where each document of a part starts in it
    before, done = 0, 0
    for place, part in zip(range(0, len(stream), AT_ONCE), _parts(stream), strict=True):
        ends = bounds[1 : len(part) + 1]
        ends[:] = np.take(sizes, part, mode="clip")  # without a bounds check: they are documents of this dataset
        np.cumsum(ends, out=ends)
        within = min(len(starts), -(-(before + int(ends[-1])) // seq_length))  # samples that start before its end
        positions: NDArray[np.int64] = np.arange(done * seq_length - before, within * seq_length - before, seq_length)
        places = np.searchsorted(ends, positions, side="right")
        np.add(places, place, out=starts[done:within, 0])
        np.subtract(positions, bounds[places], out=starts[done:within, 1])
        before, done = before + int(ends[-1]), within
    starts[0] = 0  # GPT-NeoX starts at the first document, even where it is empty
    return starts


def _parts(documents: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (documents[first : first + AT_ONCE] for first in range(0, len(documents), AT_ONCE))


def split_documents(num_documents: int, shares: Sequence[float]) -> list[range]:
    """The documents of each split, one range for each share; the first takes the rounding errors, as in GPT-NeoX."""
    total = sum(shares)
    bounds = [0]
    for share in shares:
        bounds.append(bounds[-1] + round(share / total * num_documents))
    excess = bounds[-1] - num_documents
    bounds[1:] = [max(0, bound - excess) for bound in bounds[1:]]
    return [range(start, stop) for start, stop in pairwise(bounds)]
