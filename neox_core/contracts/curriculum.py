"""Curricula: which samples and tokens a run trains on, by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from attrs import frozen

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@frozen
class CurriculumShape:
    """The numbers that a curriculum needs.

    * seq_length: tokens of a sample.
    * train_batch: samples of a step, of all ranks together.
    * train_iters: steps of the run.
    """

    num_layers: int
    seq_length: int
    train_batch: int
    train_iters: int


class Curriculum(Protocol):
    """`target(shape: CurriculumShape, settings) -> Curriculum`. Its settings have `enabled`, which switches it on.

    Each method is a pure function of the step, counted from 0: every rank and every process that reads data has a
    curriculum of its own, and a resumed run starts at its first step without calls for the steps before. Evaluation
    does not use it.
    """

    num_workers: int | None
    """Processes of a rank that read the training data; None: the value of `num-workers`."""

    chooses: bool
    """Whether `samples` chooses the samples of a step; otherwise they come in the order of the run."""

    routed_layers: frozenset[int]
    """The layers, counted from 0, that process only some tokens of a sample; the other tokens skip them."""

    seed: int
    """Seed for choosing these tokens, which also depend on the sample and the layer."""

    def sequence_length(self, step: int) -> int:
        """Tokens that a step reads of each sample, from its first on; from 1 to seq_length."""

    def kept_tokens(self, step: int) -> int:
        """Tokens of a sample that the routed layers process, 1 or more; seq_length or more: all."""

    def samples(self, step: int, pool: int) -> NDArray[np.int64]:
        """The samples of a step, int64 [train_batch], each below `pool`. Called where `chooses` is True.

        pool: number of samples in one pass over the data. Raises DataError for a pool that it cannot choose from.
        """
