"""Which samples are easy enough for a step, and which of them it reads."""

from __future__ import annotations

import zlib
from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neox_core.errors import DataError
from neox_core.files import replacing
from neox_curriculum.index import read_rows
from neox_curriculum.schedule import difficulty

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from neox_curriculum.settings import Metric

Limits = tuple[int, ...]


class Ranking:
    """The samples of one metric, from easy to hard. Raises DataError for a file that is not an index of these
    samples.
    """

    def __init__(self, name: str, metric: Metric) -> None:
        rows = read_rows(metric.index_to_sample_path or "")
        self.name = name
        self.samples = rows.values
        self.at = difficulty(metric)
        self.highest = metric.max_difficulty or 0
        self.values: NDArray[np.int64] | None = None
        if metric.difficulty_type == "value":
            values = read_rows(metric.index_to_metric_path or "").values
            if len(values) != len(rows.ends) or np.any(values[1:] < values[:-1]):
                raise DataError(f"{metric.index_to_metric_path}: not the ascending values of the index of samples")
            self.values, self.ends = values.astype(np.int64), rows.ends

    def easy(self, limit: int) -> NDArray[np.int64]:
        """The samples up to a difficulty."""
        if self.values is None:
            count = len(self.samples) if limit == self.highest else len(self.samples) // self.highest * limit
        else:
            rows = int(np.searchsorted(self.values, limit, side="right"))
            count = int(self.ends[rows - 1]) if rows else 0
        return np.asarray(self.samples[:count], dtype=np.int64)


class Choice:
    """The samples of each step: passes over those that are easy enough, each pass in an order of its own.

    Steps of equal limits are a phase. Its samples are shuffled by (seed, first step of the phase, number of the pass),
    so a step is found without those before it. num_epochs: of the data that a run may read at most. clusters: folder
    for the samples that each phase lets in.
    """

    def __init__(
        self, metrics: Mapping[str, Metric], seed: int, batch: int, steps: int, num_epochs: int, clusters: str | None
    ) -> None:
        self.rankings = [Ranking(name, metric) for name, metric in metrics.items()]
        self.seed, self.batch, self.steps, self.num_epochs = seed, batch, steps, num_epochs
        self.clusters = None if clusters is None else Path(clusters)
        self._easy: tuple[Limits, NDArray[np.int64]] | None = None
        self._order: tuple[tuple[int, int], NDArray[np.int64]] | None = None

    def samples(self, step: int, pool: int) -> NDArray[np.int64]:
        """int64 [batch]. Raises DataError for a pool that is too small, or of which no sample is easy enough."""
        if self.steps * self.batch > pool * self.num_epochs:
            raise DataError(
                f"{self.steps} steps of {self.batch} are more than {self.num_epochs} passes over {pool} samples",
                hint="set data_efficiency.data_sampling.num_epochs, or train for fewer steps",
            )
        limits = self._limits(step)
        first = bisect_left(range(step), limits, key=self._limits)
        easy = self._samples_within(limits, first, pool)
        places = (step - first) * self.batch + np.arange(self.batch, dtype=np.int64)
        chosen: NDArray[np.int64] = np.empty(self.batch, dtype=np.int64)
        passes = places // len(easy)
        for number in range(int(passes[0]), int(passes[-1]) + 1):
            mine = passes == number
            chosen[mine] = easy[self._shuffled(first, number, len(easy))[places[mine] % len(easy)]]
        return chosen

    def _limits(self, step: int) -> Limits:
        return tuple(ranking.at(step) for ranking in self.rankings)

    def _samples_within(self, limits: Limits, first: int, pool: int) -> NDArray[np.int64]:
        if self._easy is None or self._easy[0] != limits:
            easy = self._find(limits, pool)
            if not len(easy):
                raise DataError(f"no sample is easy enough for step {first}: {self._shown(limits)}")
            self._easy = limits, easy
            if self.clusters is not None:
                before = self._find(self._limits(first - 1), pool) if first else easy[:0]
                _write(self.clusters, self._shown(limits), np.setdiff1d(easy, before))
        return self._easy[1]

    def _find(self, limits: Limits, pool: int) -> NDArray[np.int64]:
        """Ascending."""
        within = np.ones(pool, dtype=bool)
        for ranking, limit in zip(self.rankings, limits, strict=True):
            easy = ranking.easy(limit)
            if len(easy) and (easy.min() < 0 or easy.max() >= pool):
                wrong = int(easy.max() if easy.max() >= pool else easy.min())
                raise DataError(
                    f"metric {ranking.name}: its index has sample {wrong}, and a pass over the data has {pool}",
                    hint="make the index from this dataset, with these split, seed and seq-length",
                )
            mine = np.zeros(pool, dtype=bool)
            mine[easy] = True
            within &= mine
        return np.flatnonzero(within)

    def _shuffled(self, first: int, number: int, count: int) -> NDArray[np.int64]:
        if self._order is None or self._order[0] != (first, number):
            rng = np.random.Generator(np.random.PCG64([self.seed % 2**63, first, number]))
            self._order = (first, number), rng.permutation(count)
        return self._order[1]

    def _shown(self, limits: Limits) -> str:
        return "_".join(f"{ranking.name}{limit}" for ranking, limit in zip(self.rankings, limits, strict=True))


def _write(folder: Path, name: str, samples: NDArray[np.int64]) -> None:
    """As DeepSpeed names them; the digits at the end are a checksum, so an equal file need not be written again."""
    path = folder / f"data_cluster_{name}_{zlib.crc32(samples.tobytes()):08x}.npy"
    if path.exists():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{id(samples):x}.tmp")
        with replacing(path, temporary), temporary.open("wb") as file:
            np.save(file, samples, allow_pickle=False)
    except OSError as error:
        raise DataError(f"data_cluster_path {folder}: cannot be written: {error.strerror}") from error
