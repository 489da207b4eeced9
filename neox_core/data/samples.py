"""The samples of a split, as the objective of the run makes them of documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from neox_core.data.curriculum import ChosenSamples
from neox_core.data.sources import Datasets, build_tokenizer
from neox_core.data.vocabulary import padded_vocab
from neox_core.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import TypeIs

    from neox_core.contracts import Curriculum
    from neox_core.contracts.objective import Objective, Samples, SampleStream, Split
    from neox_core.plan.runfile import RunPlan


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
        raise DataError(
            "text is read in order, and its samples are not counted before",
            hint="prepare it with `neox data prepare`, and set data-path to the result",
        )
    return samples


class Remaining:
    """`samples` without some ranges of indices, each [first, last), rising and apart."""

    def __init__(self, samples: Samples, skipped: Sequence[tuple[int, int]]) -> None:
        self._samples, self._skipped = samples, skipped
        self.notes = samples.notes

    def __len__(self) -> int:
        return len(self._samples) - sum(last - first for first, last in self._skipped)

    def read(self, index: int, into: NDArray[np.int64]) -> None:
        self._samples.read(without(index, self._skipped), into)

    def identify(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._samples.identify(without(indices, self._skipped))

    def in_words(self) -> Sequence[str]:
        return self._samples.in_words()


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
    steps = plan.train.train_iters if split == "train" else plan.train.eval_iters
    return steps * plan.batch.train_batch


def rounds_of(stored: Sequence[int], plan: RunPlan, skipped: int = 0) -> tuple[int, ...]:
    """The number of training samples when the order of a run was made, and each time it was extended.

    stored: the numbers in the checkpoint; empty for a new run. skipped: samples that the run leaves out.
    """
    wanted = samples_wanted(plan, "train") + skipped
    return (*stored, wanted) if not stored or wanted > stored[-1] else tuple(stored)
