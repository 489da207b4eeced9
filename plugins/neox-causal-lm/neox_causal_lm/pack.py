"""Packs a stream of documents into samples, with a position from which packing can continue."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import asdict, astuple, evolve, field, frozen
from attrs.validators import ge

from neox_core.errors import CheckpointError, DataError
from neox_core.untrusted import strict_converter, structured

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from neox_core.contracts import TokenStream
    from neox_core.plan.runfile import ComponentRef

GOLDEN = 0x9E3779B97F4A7C15  # of 2^64: its multiples are spread evenly (Knuth, TAOCP 3, 6.4)


@frozen
class Place:
    """Token `offset` of the document at `record` of `file`, which is number `number` of all, in pass `epoch`.

    Records are counted from 1, like lines, everything else from 0.
    """

    epoch: int = field(default=0, validator=ge(0))
    file: int = field(default=0, validator=ge(0))
    record: int = field(default=1, validator=ge(1))
    number: int = field(default=0, validator=ge(0))
    offset: int = field(default=0, validator=ge(0))


@frozen
class Position:
    """For each stream the number of samples taken, and where the next one starts."""

    taken: tuple[int, ...]
    places: tuple[Place, ...]

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Position:
        """A position from plain values. Raises CheckpointError for values that `Mixer.place` did not make."""
        return structured(strict_converter(), plain, cls, "not a position in the texts", CheckpointError)


@frozen
class Share:
    """The documents of a split: those whose numbers, spread evenly over 0 to 1, are from `first` to `end`."""

    first: float = 0.0
    end: float = 1.0

    def has(self, number: int) -> bool:
        """Whether the document of this number belongs to the share."""
        return self.first <= (number * GOLDEN % 2**64) / 2**64 < self.end


def share_of(shares: Sequence[float], split: int) -> Share:
    """The share of the split with that index."""
    total = sum(shares)
    return Share(sum(shares[:split]) / total, sum(shares[: split + 1]) / total if any(shares[split + 1 :]) else 1.0)


class Packer:
    """An iterator of samples [seq_length + 1] of one stream, from `place` on; the last token of each is the first of
    the next.

    It never ends: after the last document it starts over with the first. Raises DataError for an id outside of the
    vocabulary and where the share has no document.
    """

    def __init__(
        self,
        name: str,
        stream: TokenStream,
        share: Share,
        seq_length: int,
        vocab_size: int,
        place: Place,
        backend: ComponentRef,
    ) -> None:
        self._name, self._stream, self._share, self._backend = name, stream, share, backend
        self._seq_length, self._vocab_size = seq_length, vocab_size
        self._held: deque[tuple[Place, NDArray[np.int32]]] = deque()
        self._documents = self._read(place)

    @property
    def place(self) -> Place:
        """The place of the next sample. Reads ahead to find it."""
        self._hold(1)
        return self._held[0][0]

    def __next__(self) -> NDArray[np.int32]:
        self._hold(self._seq_length + 1)
        sample = np.concatenate([ids for _, ids in self._held])[: self._seq_length + 1]
        drop = self._seq_length
        while drop >= len(self._held[0][1]):
            drop -= len(self._held.popleft()[1])
        place, ids = self._held[0]
        self._held[0] = evolve(place, offset=place.offset + drop), ids[drop:]
        return sample

    def _hold(self, tokens: int) -> None:
        held = sum(len(ids) for _, ids in self._held)
        while held < tokens:
            self._held.append(next(self._documents))
            held += len(self._held[-1][1])

    def _read(self, place: Place) -> Iterator[tuple[Place, NDArray[np.int32]]]:
        anything = False
        while True:
            for file, record, number, ids in self._stream.documents(
                (place.file, place.record), place.number, self._share.has
            ):
                if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu":
                    raise self._backend.fault("its stream does not hold ids of an integer type")
                if len(ids) and (ids.min() < 0 or ids.max() >= self._vocab_size):
                    wrong = int(ids[(ids < 0) | (ids >= self._vocab_size)][0])
                    raise DataError(
                        f"{self._name}: file {file}, record {record}: id {wrong} is not among the model's "
                        f"{self._vocab_size}",
                        hint="use the tokenizer of the model's vocabulary",
                    )
                if len(ids) > place.offset:
                    anything = True
                    yield Place(place.epoch, file, record, number, place.offset), ids[place.offset :]
                place = evolve(place, offset=0)
            if not anything and place == Place(place.epoch):
                raise DataError(
                    f"{self._name}: there are no documents",
                    hint="give it a larger share in split, a share of 0 where it is not needed, or more documents",
                )
            place = Place(place.epoch + 1)


class Mixer:
    """Samples of several streams, each from the stream that lags most behind its share: see `blend.py`."""

    def __init__(self, packers: Sequence[Packer], weights: Sequence[float], taken: Sequence[int]) -> None:
        self._packers, self._weights, self._taken = packers, weights, list(taken)

    def next_sample(self) -> tuple[tuple[int, ...], NDArray[np.int32]]:
        """(what identifies the sample, its ids [seq_length + 1])."""
        before = sum(self._taken) or 1
        lags = [weight * before - taken for weight, taken in zip(self._weights, self._taken, strict=True)]
        turn = lags.index(max(lags))
        self._taken[turn] += 1
        packer = self._packers[turn]
        return (turn, *astuple(packer.place)), next(packer)

    def place(self) -> dict[str, Any]:
        """Where the next sample starts, as plain values of a Position."""
        return asdict(Position(tuple(self._taken), tuple(packer.place for packer in self._packers)))
