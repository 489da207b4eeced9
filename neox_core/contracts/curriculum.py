"""What the steps of a run train on, where that changes as it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from attrs import frozen

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@frozen
class CurriculumShape:
    """The numbers that a curriculum needs. seq_length in tokens, train_batch in samples of all ranks together."""

    num_layers: int
    seq_length: int
    train_batch: int
    train_iters: int


class Curriculum(Protocol):
    """`target(shape: CurriculumShape, settings) -> Curriculum`. Its settings have `enabled`, which switches it on.

    All that it says is a pure function of the step, counted from 0: every rank and every process that reads data asks
    one of its own, and a resumed run asks for its first step without having asked for those before. Evaluation is
    left alone.
    """

    num_workers: int | None
    """Processes of a rank that read the training data; None: as `num-workers` says."""

    chooses: bool
    """Whether it says which samples a step reads; else they come in the order of the run."""

    routed_layers: frozenset[int]
    """The layers, counted from 0, that see some of the tokens of a sample; the others pass by."""

    seed: int
    """Of the draw of these tokens, which also follows from the sample and the layer."""

    def sequence_length(self, step: int) -> int:
        """Tokens that a step reads of each sample, from its first; at most seq_length."""
        ...

    def kept_tokens(self, step: int) -> int:
        """Tokens of a sample that the routed layers see; seq_length or more: all."""
        ...

    def samples(self, step: int, pool: int) -> NDArray[np.int64]:
        """The samples of a step, int64 [train_batch], each below `pool`: how many one pass over the data has.

        Asked where `chooses` is True. Raises DataError for a pool that it cannot choose from.
        """
        ...
