"""The samples of texts that are tokenized while they are read, in the order of their files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from neox_causal_lm.pack import Mixer, Packer, Place, Position, Share, share_of
from neox_causal_lm.samples import more_documents
from neox_core.contracts.objective import SPLITS
from neox_core.errors import CheckpointError, DataError

if TYPE_CHECKING:
    from neox_core.contracts import TokenStream
    from neox_core.contracts.objective import Datasets, Split
    from neox_core.plan.runfile import ComponentRef, RunPlan


@frozen
class Source:
    """One stream: its name for messages, and its weight, relative to the others."""

    name: str
    stream: TokenStream
    weight: float


@frozen
class Streams:
    """The streams of a split. identity: changes when their samples change."""

    sources: tuple[Source, ...]
    share: Share
    seq_length: int
    vocab_size: int
    backend: ComponentRef

    @property
    def identity(self) -> str:
        known = [(each.stream.identity, each.weight) for each in self.sources]
        return hashlib.sha256(f"{known} {self.share} {self.seq_length}".encode()).hexdigest()

    def read_from(self, place: Mapping[str, Any] | None) -> Mixer:
        """The samples from `place` on; None: from the first. Raises CheckpointError for a place in other texts."""
        count = len(self.sources)
        begin = Position((0,) * count, (Place(),) * count) if place is None else Position.of(place)
        if len(begin.places) != count or len(begin.taken) != count:
            raise CheckpointError("its position in the texts belongs to other texts")
        packers = [
            Packer(each.name, each.stream, self.share, self.seq_length, self.vocab_size, place, self.backend)
            for each, place in zip(self.sources, begin.places, strict=True)
        ]
        total = sum(each.weight for each in self.sources)
        return Mixer(packers, [each.weight / total for each in self.sources], begin.taken)


def open_streams(plan: RunPlan, split: Split, datasets: Datasets, vocab_size: int) -> Streams:
    """Open the streams of a split. Raises DataError where it has none."""
    if not plan.data.train:
        if plan.data.prefix is None:
            raise DataError("there is no text to read", hint="set data-path")
        share = share_of(plan.data.split, SPLITS.index(split))
        if share.first >= share.end:
            hint = more_documents(plan.data.split, split)
            raise DataError(f"{plan.data.prefix}: none of its documents is for {split}", hint=hint)
        sources = [Source(f"{plan.data.prefix} for {split}", datasets.stream(plan.data.prefix), 1.0)]
    else:
        share = Share()
        named = getattr(plan.data, split)
        if not named:
            raise DataError(f"there is no dataset for {split}", hint=f"set {split}-data-paths")
        if plan.data.sampler_alpha is not None:
            hint = f"give {split}-data-weights, or prepare the text"
            raise DataError("the number of documents of a text is not known before it is read", hint=hint)
        sources = [Source(f"{each.prefix} for {split}", datasets.stream(each.prefix), each.weight) for each in named]
    return Streams(tuple(sources), share, plan.model.seq_length, vocab_size, plan.data.backend)
