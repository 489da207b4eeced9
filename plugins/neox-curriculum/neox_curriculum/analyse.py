"""How hard each sample of a pass is, and the index of it: the work of `neox difficulty`, in a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neox_core.data.samples import open_counted
from neox_core.errors import run_main
from neox_core.plan.runfile import receive_plan
from neox_core.terminal import echo, echo_json
from neox_curriculum.index import write_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from neox_core.contracts import Samples


def vocabulary_rarity(samples: Samples, seq_length: int) -> NDArray[np.int64]:
    """-sum of log p(token) over the tokens of each sample, p by how often a token is in the pass; in whole nats.

    Source: Li et al. 2022, arXiv:2212.03597, section 3.1.
    """
    counts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    for tokens in _tokens(samples, seq_length):
        more = np.bincount(tokens, minlength=len(counts))
        more[: len(counts)] += counts
        counts = more
    rarity = -np.log(np.maximum(counts, 1) / max(1, counts.sum()))
    return np.array([round(float(rarity[tokens].sum())) for tokens in _tokens(samples, seq_length)], dtype=np.int64)


METRICS: dict[str, Callable[[Samples, int], NDArray[np.int64]]] = {"vocabularyrarity": vocabulary_rarity}


def write_index(values: NDArray[np.int64], prefix: Path) -> tuple[Path, Path]:
    """The samples by value and the values, both ascending: <prefix>_index_to_sample and _index_to_metric.

    Raises DataError where they cannot be written.
    """
    order = np.argsort(values, kind="stable")
    levels, starts = np.unique(values[order], return_index=True)
    paths = Path(f"{prefix}_index_to_sample"), Path(f"{prefix}_index_to_metric")
    write_rows(paths[0], order.astype(np.int64), np.append(starts, len(order))[1:])
    write_rows(paths[1], levels, np.arange(1, len(levels) + 1))
    return paths


def _tokens(samples: Samples, seq_length: int) -> Iterator[NDArray[np.int64]]:
    """What each sample of the pass is trained on: int64 [seq_length]."""
    into = np.empty(seq_length + 1, dtype=np.int64)
    for index in range(len(samples)):
        samples.read(index, into)
        yield into[:-1]


def main() -> None:
    """Write the index of a metric over the training samples."""
    arguments = json.loads(sys.argv[1])
    plan = receive_plan(arguments["plan"])
    values = METRICS[arguments["metric"]](open_counted(plan, "train", rounds=(0,)), plan.model.seq_length)
    folder = Path(arguments["out"])
    by_sample, by_metric = write_index(values, folder / arguments["metric"])
    if arguments["as_json"]:
        paths = {"index_to_sample_path": str(by_sample), "index_to_metric_path": str(by_metric)}
        echo_json({"samples": len(values), "lowest": values.min().item(), "highest": values.max().item(), **paths})
        return
    echo(
        f"{len(values):,} samples, {arguments['metric']} from {values.min():,} to {values.max():,}\n"
        f"index_to_sample_path: {by_sample}\nindex_to_metric_path: {by_metric}"
    )


if __name__ == "__main__":
    run_main(main)
