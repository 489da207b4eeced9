"""The samples of a split, as the objective of the run makes them of documents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neox_core.data.sources import Datasets, build_tokenizer
from neox_core.data.tokenizer import padded_vocab
from neox_core.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import TypeIs

    from neox_core.contracts import Curriculum
    from neox_core.contracts.objective import Objective, Samples, SampleStream, Split
    from neox_core.plan.runfile import ComponentRef, RunPlan


def open_split(
    plan: RunPlan,
    split: Split,
    vocab_size: int | None = None,
    *,
    rounds: Sequence[int] = (),
    curriculum: Curriculum | None = None,
    datasets: Datasets | None = None,
) -> Samples | SampleStream:
    """The samples of one split in the order of reading; a curriculum chooses them from one pass over the data.

    vocab_size: rows of the embedding, computed from the plan when not given. rounds: of a resumed run; each extends
    the order of those before it, which it does not change. datasets: those that the run has already opened. Raises
    DataError for a dataset that cannot be read or has no documents for the split.
    """
    chooses = curriculum is not None and curriculum.chooses and split == "train"
    if vocab_size is None:
        tokenizer = build_tokenizer(plan) if plan.model.padded_vocab_size is None else None
        vocab_size = padded_vocab(plan.model, tokenizer.vocab_size if tokenizer else None)
    datasets = datasets or Datasets(plan.data)
    wanted = (0,) if chooses else tuple(rounds) or (samples_wanted(plan, split),)
    objective: Objective = plan.objective.make(plan)
    with plan.objective.blamed():
        samples = objective.samples(split, datasets, vocab_size, wanted)
    if is_stream(samples) != datasets.streamed:
        raise plan.objective.fault(f"its samples of {split} are a {type(samples).__name__}")
    if curriculum is not None and chooses and not is_stream(samples):
        return ChosenSamples(samples, curriculum, plan.batch.train_batch, plan.curriculum)
    return samples


def open_counted(plan: RunPlan, split: Split, *, rounds: Sequence[int] = ()) -> Samples:
    """As `open_split`, where samples can be read by index. Raises DataError where they are only read in order."""
    samples = open_split(plan, split, rounds=rounds)
    if is_stream(samples):
        said = "text is read in order, and its samples are not counted before"
        raise DataError(said, hint="prepare it with `neox data prepare`, and set data-path to the result")
    return samples


class OtherOrder(ABC):
    """The samples of a split by other indices; itself `Samples`."""

    def __init__(self, samples: Samples) -> None:
        self._all = samples
        self.notes = samples.notes

    @abstractmethod
    def which(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The samples that these indices are of: int64 [n] -> int64 [n]."""

    def __len__(self) -> int:
        return len(self._all)

    def read(self, index: int, into: NDArray[np.int64]) -> None:
        self._all.read(int(self.which(np.array([index]))[0]), into)

    def identify(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._all.identify(self.which(indices))

    def in_words(self) -> Sequence[str]:
        return self._all.in_words()


class ChosenSamples(OtherOrder):
    """Of the samples of one pass, those that a curriculum chooses, by the index of the run."""

    def __init__(self, samples: Samples, curriculum: Curriculum, per_step: int, reference: ComponentRef | None) -> None:
        super().__init__(samples)
        self._curriculum, self._per_step, self._reference = curriculum, per_step, reference
        self._last: tuple[int, NDArray[np.int64]] | None = None

    def which(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        chosen = np.empty_like(indices)
        steps = indices // self._per_step
        for step in np.unique(steps).tolist():
            mine = steps == step
            chosen[mine] = self._of_step(step)[indices[mine] % self._per_step]
        return chosen

    def _of_step(self, step: int) -> NDArray[np.int64]:
        if self._last is None or self._last[0] != step:
            pool = len(self._all)
            chosen = self._curriculum.samples(step, pool)
            whole = isinstance(chosen, np.ndarray) and chosen.shape == (self._per_step,) and chosen.dtype.kind in "iu"
            if self._reference is not None and not (whole and chosen.min() >= 0 and chosen.max() < pool):
                raise self._reference.fault(
                    f"its samples of step {step} are not {self._per_step} whole numbers below {pool}"
                )
            self._last = step, chosen
        return self._last[1]


class Remaining(OtherOrder):
    """`samples` without some ranges of indices, each [first, last), rising and apart."""

    def __init__(self, samples: Samples, skipped: Sequence[tuple[int, int]]) -> None:
        super().__init__(samples)
        self._skipped = skipped

    def __len__(self) -> int:
        return super().__len__() - sum(last - first for first, last in self._skipped)

    def which(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = without(indices, self._skipped)
        return found


def without(index: Any, skipped: Sequence[tuple[int, int]]) -> Any:
    """Which samples the ones of an index, or an array of them, are without `skipped`: ranges, rising and apart."""
    for first, last in skipped:
        index = index + (last - first) * (index >= first)
    return index


def is_stream(samples: Samples | SampleStream) -> TypeIs[SampleStream]:
    """Whether samples are read in order; else by index."""
    return hasattr(samples, "read_from")


def samples_wanted(plan: RunPlan, split: Split) -> int:
    """The number of samples that a run reads of a split, in one evaluation where it is not the training's."""
    if split == "train":
        return plan.batch.samples_before(plan.train.train_iters)
    return plan.train.eval_iters * plan.batch.train_batch


def rounds_of(stored: Sequence[int], plan: RunPlan, skipped: int = 0) -> tuple[int, ...]:
    """The number of training samples when the order of a run was made, and each time it was extended.

    stored: the numbers in the checkpoint; empty for a new run. skipped: samples that the run leaves out.
    """
    wanted = samples_wanted(plan, "train") + skipped
    return (*stored, wanted) if not stored or wanted > stored[-1] else tuple(stored)
