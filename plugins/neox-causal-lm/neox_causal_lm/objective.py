"""The objective `causal-lm`: every token of a sample is predicted from those before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from neox_causal_lm.samples import Samples, open_samples
from neox_causal_lm.streams import Streams, open_streams

if TYPE_CHECKING:
    from neox_core.contracts.objective import Datasets, Split
    from neox_core.plan.runfile import RunPlan


class CausalLM:
    """Documents are laid end to end and cut into samples, in the order of GPT-NeoX."""

    def __init__(self, plan: RunPlan, settings: None = None) -> None:
        self._plan = plan

    def samples(self, split: Split, datasets: Datasets, vocab_size: int, rounds: Sequence[int]) -> Samples | Streams:
        if datasets.streamed:
            return open_streams(self._plan, split, datasets, vocab_size)
        return open_samples(self._plan, split, datasets, vocab_size, rounds)
