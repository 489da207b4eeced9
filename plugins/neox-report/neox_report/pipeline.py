"""The schedule of a pipeline: which stage works on which micro-batch at which time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neox_report.plan import at

MOST_STAGES = 32
MOST_MICRO_BATCHES = 24
"""Drawn; those after them repeat what the ones before do."""


def pipeline_of(plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """Stages, micro-batches of a step, the share of time that stages wait, and a picture; None without a pipeline."""
    stages = at(plan, "cluster.pipeline_parallel", int) or 1
    micro_batches = at(plan, "batch.gradient_accumulation", int) or 1
    if stages < 2 or micro_batches < 1:
        return None
    shown = min(micro_batches, MOST_MICRO_BATCHES)
    return {
        "stages": stages,
        "micro_batches": micro_batches,
        "shown": shown,
        "bubble": (stages - 1) / (micro_batches + stages - 1),
        "rows": schedule(stages, shown) if stages <= MOST_STAGES else [],
    }


def schedule(stages: int, micro_batches: int) -> list[list[int]]:
    """For each stage, what it does at each time: m + 1: forward of micro-batch m, -m - 1: its backward, 0: it waits.

    One forward, one backward (PipeDream-Flush, arXiv:2006.09503), with both of equal length, as DeepSpeed runs it.
    """
    times = 2 * (micro_batches + stages - 1)
    return [[_at(stage, time, stages, micro_batches) for time in range(times)] for stage in range(stages)]


def _at(stage: int, time: int, stages: int, micro_batches: int) -> int:
    if time % 2 == stage % 2:  # forward of m begins at stage + 2 m
        micro_batch = (time - stage) // 2
        return micro_batch + 1 if 0 <= micro_batch < micro_batches else 0
    micro_batch = (time + stage + 1) // 2 - stages  # its backward at 2 stages - 1 - stage + 2 m
    return -micro_batch - 1 if 0 <= micro_batch < micro_batches else 0


def in_words(row: Sequence[int]) -> str:
    """A row of a schedule for a reader: F0 F1 B0 ..."""
    return " ".join("." if each == 0 else f"{'F' if each > 0 else 'B'}{abs(each) - 1}" for each in row)
