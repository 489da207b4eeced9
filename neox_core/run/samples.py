"""The samples of a run: those it has been trained on, what a checkpoint stores about them, and the next ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_core.checkpoint.contents import contents_of, other_contents
from neox_core.data.batches import Reader, build_batches
from neox_core.data.sample_hash import Trail
from neox_core.data.samples import Remaining, open_split, rounds_of, without
from neox_core.data.sources import Datasets
from neox_core.data.stream import Mark
from neox_core.errors import CheckpointError

if TYPE_CHECKING:
    from neox_core.contracts import Curriculum, DataBackend
    from neox_core.contracts.objective import Samples, SampleStream, Split
    from neox_core.parallel.groups import Groups
    from neox_core.plan.runfile import RunPlan
    from neox_core.plan.stored.state import TrainState


class TrainingSamples(ABC):
    """notes: lines for people. skippable: whether the run can leave samples out."""

    skippable = False

    def __init__(
        self,
        plan: RunPlan,
        read: partial[Reader],
        opened: partial[Any],
        backend: DataBackend,
        curriculum: Curriculum | None,
    ) -> None:
        self._plan, self._read, self._open, self._curriculum = plan, read, opened, curriculum
        self._evaluated: dict[Split, Any] = {split: opened(split) for split in _evaluated(plan)}
        self.notes: list[str] = []
        self._open_training()
        self._contents = contents_of(plan.data, backend)

    @abstractmethod
    def _open_training(self) -> None: ...

    @abstractmethod
    def resume(self, state: TrainState, path: Path | str | None) -> None:
        """Continue from `state`, and update its fields about samples. Raises CheckpointError for other samples."""

    @abstractmethod
    def batches(self, step: int) -> Reader:
        """This rank's micro-batches from `step` on, the step of the state after `resume`."""

    def valid(self, split: Split) -> Reader:
        """This rank's micro-batches of one pass over an evaluation split."""
        return self._read(split, first_step=0, opened=self._evaluated[split])

    @abstractmethod
    def trail(self, step: int) -> int:
        """A hash of the samples of all of the `step` finished steps."""

    def where(self, index: int) -> int:
        """Which sample of the order without interventions the run reads as its sample `index`."""
        return index

    @abstractmethod
    def note(self, state: TrainState) -> None:
        """Store in `state`, before it is saved, what `resume` needs."""


def open_samples(
    plan: RunPlan, groups: Groups, vocab_size: int, curriculum: Curriculum | None = None
) -> TrainingSamples:
    """Open everything that the run reads, once, so that errors appear at the start and not after a thousand steps."""
    read = partial(build_batches, plan, data_rank=groups.data_rank, data_size=groups.data_size)
    datasets = Datasets(plan.data)
    opened = partial(open_split, plan, vocab_size=vocab_size, datasets=datasets)
    kind = _Streamed if datasets.streamed else _Ordered
    return kind(plan, read, opened, datasets.backend, curriculum)


class _Ordered(TrainingSamples):
    """Samples by index, of datasets whose documents are counted."""

    def _open_training(self) -> None:
        self.notes = [note for samples in self._evaluated.values() for note in samples.notes]
        self.skippable = self._curriculum is None or not self._curriculum.chooses
        self._follow(rounds_of((), self._plan), ())

    def _follow(self, rounds: tuple[int, ...], skipped: tuple[tuple[int, int], ...]) -> None:
        self._rounds, self._skipped = rounds, skipped
        samples: Samples = self._open("train", rounds=rounds, curriculum=self._curriculum)
        self._samples = Remaining(samples, skipped) if skipped else samples
        self._trail = Trail(self._samples, self._plan.batch.train_batch, self._plan.batch.samples_before)

    def resume(self, state: TrainState, path: Path | str | None) -> None:
        skipped = state.skipped()
        rounds = rounds_of(state.data_rounds, self._plan, sum(last - first for first, last in skipped))
        if sorted({*rounds}) != [*rounds] or not 0 <= state.consumed_samples <= rounds[-1]:
            said = f"{state.consumed_samples} samples are read, of an order of {', '.join(map(str, rounds[-5:]))}"
            hint = "load another checkpoint, or set finetune: true to start at step 0 from these weights"
            raise CheckpointError(f"{path}: {said}", hint=hint)
        if (rounds, skipped) != (self._rounds, self._skipped):
            self._follow(rounds, skipped)
        self.notes += self._samples.notes
        if state.data_hash is not None and state.data_hash != self.trail(state.step):
            raise _other_samples(
                path, state.step, "the datasets, their weights, split, seed or seq-length have changed"
            )
        self.notes += other_contents(state.data_contents, self._contents, self._plan.data)
        state.data_rounds = self._rounds

    def batches(self, step: int) -> Reader:
        return self._read("train", first_step=step, curriculum=self._curriculum, opened=self._samples)

    def trail(self, step: int) -> int:
        return self._trail.at(step)

    def where(self, index: int) -> int:
        return int(without(index, self._skipped))

    def note(self, state: TrainState) -> None:
        state.data_hash = self.trail(state.step) if state.step else None
        state.data_contents = self._contents


class _Streamed(TrainingSamples):
    """Samples that are read in order."""

    def _open_training(self) -> None:
        for each in self._evaluated.values():
            each.read_from(None).place()  # reads the first documents
        self._stream: SampleStream = self._open("train")
        self._identity = self._stream.identity
        self._start: Mark | None = None
        self._reader: Reader | None = None

    def resume(self, state: TrainState, path: Path | str | None) -> None:
        if state.interventions:
            raise CheckpointError(f"{path}: its run has skipped samples, and text is read in order")
        if state.data_position is None:
            return
        position = dict(state.data_position)
        if position.pop("identity", None) != self._identity:
            raise _other_samples(
                path, state.step, "the texts, their weights, split, seq-length or the tokenizer have changed"
            )
        try:
            start = Mark.of(position)
            self._stream.read_from(start.place)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error.message}", hint=error.hint) from error
        if start.step != state.step:
            raise CheckpointError(f"{path}: its position in the texts belongs to step {start.step}")
        self._start = start
        self.notes += other_contents(state.data_contents, self._contents, self._plan.data)

    def batches(self, step: int) -> Reader:
        self._reader = self._read(
            "train", first_step=step, curriculum=self._curriculum, start=self._start, opened=self._stream
        )
        return self._reader

    def trail(self, step: int) -> int:
        mark = self._mark()
        return mark.trail if mark is not None and mark.step == step else 0

    def note(self, state: TrainState) -> None:
        mark = self._mark()
        if mark is not None and mark.step == state.step:
            state.data_hash, state.data_contents = mark.trail, self._contents
            state.data_position = {"identity": self._identity, **mark.plain()}

    def _mark(self) -> Mark | None:
        return self._start if self._reader is None or self._reader.mark is None else self._reader.mark


def _evaluated(plan: RunPlan) -> list[Split]:
    evaluated: list[Split] = []
    if plan.train.eval_iters and plan.train.eval_interval:
        evaluated.append("valid")
    if plan.train.eval_iters and plan.data.has_test:
        evaluated.append("test")
    return evaluated


def _other_samples(path: Path | str | None, step: int, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: its {step} steps used other samples than this run has there: {why}",
        hint="undo the change, or set finetune: true to start at step 0 from these weights",
    )
