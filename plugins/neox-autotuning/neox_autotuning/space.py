"""The settings to try, their order, and when to end a stage. Runs nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import inf
from typing import Any

from attrs import evolve, field, frozen

from neox_autotuning.settings import AutotuningBlock

Sets = Mapping[str, Any]
Measure = Callable[["Trial"], float | None]
"""A function that runs a trial and returns its metric, larger is better; None where it failed."""
Expect = Callable[["Trial"], float]
"""A function that returns what a trial is expected to give: larger is better; the same for all: unknown."""

OTHER_SPELLINGS = ("train_step_batch_size", "batch_size")
MICRO, STAGE, ACCUMULATION = (
    "train_micro_batch_size_per_gpu",
    "zero_optimization.stage",
    "gradient_accumulation_steps",
)
COMPILE = "compile"
# What `fast: false` adds, by stage: the sizes and switches of communication.
KNOBS: Mapping[int, Mapping[str, Sequence[Any]]] = {
    0: {},
    1: {
        "zero_optimization.reduce_bucket_size": (50_000_000, 500_000_000),
        "zero_optimization.allgather_bucket_size": (50_000_000, 500_000_000),
    },
    2: {
        "zero_optimization.overlap_comm": (True, False),
        "zero_optimization.reduce_bucket_size": (50_000_000, 500_000_000),
        "zero_optimization.allgather_bucket_size": (50_000_000, 500_000_000),
    },
    3: {
        "zero_optimization.overlap_comm": (True, False),
        "zero_optimization.stage3_prefetch_bucket_size": (50_000_000, 500_000_000),
        "zero_optimization.stage3_max_live_parameters": (300_000_000, 1_000_000_000),
    },
}


@frozen
class Trial:
    """One setting. sets: config keys and their values, on top of the config."""

    name: str
    stage: int
    micro_batch: int
    sets: Sets = field(hash=False)


@frozen
class Space:
    """What the config fixes. micro_batch: to start with. per_rank: samples of a step of one data-parallel rank.

    per_rank None: the batch grows with the micro-batch, which is accumulated `accumulation` times. own: ZeRO stage
    and micro-batch of the config as it is. stages: to try. spellings: other names of the micro-batch
    in the config, which must agree. may_compile: the model can be compiled, and the config does not say whether.
    """

    own: tuple[int, int]
    stages: tuple[int, ...]
    micro_batch: int
    data_parallel: int
    accumulation: int
    per_rank: int | None
    spellings: tuple[str, ...] = ()
    may_compile: bool = False


def baseline(space: Space, again: str = "") -> Trial:
    """The config as it is. again: added to the name, to measure it once more."""
    return Trial(f"baseline{again}", *space.own, {})


def is_baseline(trial: Trial, space: Space) -> bool:
    """Whether a trial has the settings of the config."""
    return trial.name == _name(*space.own, {})


def micro_batches(space: Space, block: AutotuningBlock) -> list[int]:
    """Sizes from the run's own on, each twice the one before it where the batch allows it; at most as many as asked."""
    sizes: list[int] = []
    size = space.micro_batch
    while len(sizes) < block.num_tuning_micro_batch_sizes and _fits(size, space, block):
        sizes.append(size)
        size *= 2
    return sizes


def no_idea(trial: Trial) -> float:
    """The `Expect` of who knows nothing: every trial keeps its place."""
    return 0.0


def search(
    space: Space, block: AutotuningBlock, measure: Measure, expect: Expect = no_idea
) -> tuple[float, Trial] | None:
    """(metric, trial) of the best of all stages, None where none ran. Calls `measure` once a trial, in turn.

    Stages, and micro-batches within them, are tried in the order of what `expect` says of them. The best is then tried
    compiled, where the space leaves that open.
    """
    best: tuple[float, Trial] | None = None
    stages = [_Stage(stage, space, block, measure, expect) for stage in space.stages]
    for each in sorted(stages, key=_Stage.hope, reverse=True):
        found = each.search()
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    if best is not None and space.may_compile:
        trial = compiled(best[1])
        value = measure(trial)
        if value is not None and value > best[0]:
            best = value, trial
    return best


def compiled(trial: Trial) -> Trial:
    """The same setting with a compiled model."""
    return evolve(trial, name=f"{trial.name}_{COMPILE}", sets={**trial.sets, COMPILE: True})


class _Stage:
    """The trials of one ZeRO stage."""

    def __init__(self, stage: int, space: Space, block: AutotuningBlock, measure: Measure, expect: Expect) -> None:
        self.stage, self.space, self.block, self.measure = stage, space, block, measure
        self.expected = {size: expect(_trial(stage, size, {}, space, block)) for size in micro_batches(space, block)}
        self.best: tuple[float, Trial] | None = None
        self.seen: list[tuple[Trial, float | None]] = []
        self.without_progress = 0

    def hope(self) -> float:
        """What the best of its micro-batches is expected to give."""
        return max(self.expected.values(), default=-inf)

    def search(self) -> tuple[float, Trial] | None:
        """(metric, trial) of the best, None where none ran."""
        failed = inf
        for size in sorted(self.expected, key=self.expected.__getitem__, reverse=True):
            if self._done():
                break
            if size < failed and self._try(size, {}) is None:
                failed = size  # larger sizes take more memory
        size = self.space.micro_batch // 2
        while self.best is None and size >= 1 and len(self.seen) < self.block.num_tuning_micro_batch_sizes:
            if _fits(size, self.space, self.block) and not self._done():
                self._try(size, {})
            size //= 2
        if self.best is not None and not self.block.fast:
            for knobs in self._ordered(self.best[1].micro_batch):
                if self._done():
                    break
                self._try(self.best[1].micro_batch, knobs)
        return self.best

    def _done(self) -> bool:
        return len(self.seen) >= self.block.tuner_num_trials or self.without_progress >= self.block.tuner_early_stopping

    def _try(self, size: int, knobs: Sets) -> float | None:
        trial = _trial(self.stage, size, knobs, self.space, self.block)
        value = self.measure(trial)
        self.seen.append((trial, value))
        self.without_progress += 1
        if value is not None and (self.best is None or value > self.best[0]):
            self.best = value, trial
            self.without_progress = 0
        return value

    def _ordered(self, size: int) -> Iterator[Sets]:
        names = KNOBS[self.stage]
        left: list[Sets] = (
            [dict(zip(names, values, strict=True)) for values in product(*names.values())] if names else []
        )
        if self.block.tuner_type == "random":
            random.Random(self.stage).shuffle(left)  # noqa: S311 - an order, which is the same at every search
        while left:
            number = self._likeliest(left, size) if self.block.tuner_type == "model_based" else 0
            yield left.pop(number)

    def _likeliest(self, left: Sequence[Sets], size: int) -> int:
        """The setting with the best prediction of a model of the trials so far; the first until there are two
        trials.
        """
        from neox_autotuning.model import predict

        known = [(_features(trial.sets, self.stage), value) for trial, value in self.seen if value is not None]
        if len(known) < 2:
            return 0
        expected = predict(known, [_features({MICRO: size, **each}, self.stage) for each in left])
        return max(range(len(left)), key=expected.__getitem__)


def _features(sets: Sets, stage: int) -> list[float]:
    """Numbers of a setting: its micro-batch, then each knob of the stage, -1 where it is left alone."""
    return [float(sets.get(key, -1)) for key in (MICRO, *KNOBS[stage])]


def _fits(size: int, space: Space, block: AutotuningBlock) -> bool:
    if space.per_rank is not None:
        return space.per_rank % size == 0
    most = block.max_train_batch_size
    return most is None or size * space.accumulation * space.data_parallel <= most


def _trial(stage: int, size: int, knobs: Sets, space: Space, block: AutotuningBlock) -> Trial:
    tried: dict[str, Any] = {MICRO: size, **knobs}
    if len(space.stages) > 1:
        tried[STAGE] = stage
    if space.per_rank is not None:
        tried[ACCUMULATION] = space.per_rank // size
    sets = tried | dict.fromkeys(space.spellings, size)
    for key, other in (block.arg_mappings or {}).items():
        known = key.strip().replace("-", "_")
        if known in tried:
            sets[other.strip().lstrip("-").replace("-", "_")] = tried[known]
    return Trial(_name(stage, size, knobs), stage, size, sets)


def _name(stage: int, size: int, knobs: Sets) -> str:
    return "_".join([f"z{stage}", f"mbs{size}", *(f"{key.rpartition('.')[2]}{value}" for key, value in knobs.items())])
