"""The two curricula, as `neox_core.contracts.Curriculum` has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from neox_curriculum.choice import Choice
from neox_curriculum.rules import SEQLEN
from neox_curriculum.schedule import difficulty, kept

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from neox_core.contracts import CurriculumShape
    from neox_curriculum.settings import DataEfficiencySettings, SeqlenSettings


class DataEfficiency:
    """Samples by difficulty, lengths, and tokens that layers see: each where its switches are on.

    Raises DataError for an index that cannot be read.
    """

    def __init__(self, shape: CurriculumShape, settings: DataEfficiencySettings) -> None:
        block = settings.data_efficiency
        sampling, routing = block.data_sampling, block.data_routing.random_ltd
        metrics = dict(sampling.curriculum_learning.curriculum_metrics) if block.samples else {}
        seqlen = metrics.pop(SEQLEN, None)
        self.seed = block.seed
        self.num_workers = sampling.num_workers if block.samples else None
        self.chooses = bool(metrics)
        self.routed_layers = frozenset(routing.random_ltd_layer_id if block.routes else ())
        self._length = difficulty(seqlen) if seqlen is not None else lambda step: shape.seq_length
        self._kept = kept(routing.random_ltd_schedule) if block.routes else lambda step: shape.seq_length
        self._choice = Choice(
            metrics,
            block.seed,
            shape.train_batch,
            shape.train_iters,
            sampling.num_epochs,
            sampling.curriculum_learning.data_cluster_path,
        )

    def sequence_length(self, step: int) -> int:
        return self._length(step)

    def kept_tokens(self, step: int) -> int:
        return self._kept(step)

    def samples(self, step: int, pool: int) -> NDArray[np.int64]:
        return self._choice.samples(step, pool)


class SequenceLength:
    """The older curriculum: samples in the order of the run, of a length that grows."""

    num_workers = None
    chooses = False
    routed_layers: frozenset[int] = frozenset()
    seed = 0

    def __init__(self, shape: CurriculumShape, settings: SeqlenSettings) -> None:
        self._length = difficulty(settings.curriculum_learning)
        self._shape = shape

    def sequence_length(self, step: int) -> int:
        return self._length(step)

    def kept_tokens(self, step: int) -> int:
        return self._shape.seq_length

    def samples(self, step: int, pool: int) -> NDArray[np.int64]:
        """The indices in the order of reading."""
        batch = self._shape.train_batch
        return np.arange(step * batch, (step + 1) * batch, dtype=np.int64)
