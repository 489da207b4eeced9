"""Difficulty by hand, and an index that DeepSpeed reads."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from neox_curriculum.analyse import vocabulary_rarity, write_index
from neox_curriculum.index import read_rows

TEXT = [[0, 0, 0, 1, 9], [1, 2, 0, 0, 9], [2, 2, 1, 1, 9]]  # the last token of a sample is only predicted


class Samples(SimpleNamespace):
    def __len__(self) -> int:
        return len(TEXT)

    def read(self, index: int, into: Any) -> None:
        into[:] = TEXT[index]


def test_rarity_is_the_sum_of_what_tokens_tell() -> None:
    p = {0: 5 / 12, 1: 4 / 12, 2: 3 / 12}
    samples: Any = Samples()
    expected = [round(-sum(math.log(p[token]) for token in text[:-1])) for text in TEXT]
    assert vocabulary_rarity(samples, 4).tolist() == expected


def test_deepspeed_reads_the_index(tmp_path: Path) -> None:
    from deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset import MMapIndexedDataset

    values = np.array([7, 3, 7, 100_000, 3, -2])
    by_sample, by_metric = write_index(values, tmp_path / "folder" / "m")
    samples, metric = (MMapIndexedDataset(str(path), skip_warmup=True) for path in (by_sample, by_metric))
    assert [samples[row].tolist() for row in range(len(samples))] == [[5], [1, 4], [0, 2], [3]]
    assert [metric[row].tolist() for row in range(len(metric))] == [[-2], [3], [7], [100_000]]
    assert read_rows(str(by_sample)).values.tolist() == [5, 1, 4, 0, 2, 3]
    assert read_rows(str(by_sample)).ends.tolist() == [1, 3, 5, 6]
