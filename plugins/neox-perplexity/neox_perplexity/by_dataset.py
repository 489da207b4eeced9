"""The evaluator: the validation loss of each dataset by itself."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neox_core.contracts.events import EvaluationRun


class PerplexityByDataset:
    """`valid_<dataset>_loss` and `valid_<dataset>_perplexity`, of `eval-iters` batches of each dataset."""

    def __init__(self, run: EvaluationRun, settings: None) -> None:
        sources = run.plan.data.valid
        if sources:
            named = names([source.prefix for source in sources])
            self.samples = {name: run.open([source]) for name, source in zip(named, sources, strict=True)}
        else:
            self.samples = {names([run.plan.data.prefix or "data"])[0]: run.open(())}
        self.run = run

    def evaluate(self, step: int) -> dict[str, float]:
        values = {}
        for name, samples in self.samples.items():
            loss = self.run.loss(samples)
            values[f"valid_{name}_loss"] = loss
            values[f"valid_{name}_perplexity"] = math.exp(loss) if loss < 700 else math.inf
        return values


def names(prefixes: Sequence[str]) -> list[str]:
    """A name for each dataset: the last part of its path, with as many parts before it as make all names differ."""
    parts = [PurePath(prefix).parts for prefix in prefixes]
    for count in range(1, max(map(len, parts)) + 1):
        named = [re.sub(r"[^\w.-]+", "_", "_".join(part[-count:])).strip("_") for part in parts]
        if len({*named}) == len(named):
            return named
    seen = Counter[str]()  # a dataset that is listed twice
    for index, name in enumerate(named):
        seen[name] += 1
        named[index] = f"{name}.{seen[name]}" if seen[name] > 1 else name
    return named
