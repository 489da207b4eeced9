"""Whether the datasets of a run were tokenized with its tokenizer, as far as `neox data prepare` has noted it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from neox_core.contracts.objective import SPLITS
from neox_core.data.records import MANIFEST, read_json, vocabulary_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neox_core.api import Problem
    from neox_core.config.schema.structure import Config
    from neox_core.plan.runfile import DataPlan


def other_vocabularies(config: Config, plan: DataPlan) -> Iterator[Problem]:
    """A warning for each dataset of another vocabulary; two kinds of tokenizer count as different ones."""
    if plan.tokenizer is None:
        return
    named = {each.prefix: f"{split}-data-paths" for split in SPLITS for each in getattr(plan, split)}
    if not plan.train and plan.prefix is not None:
        named = {plan.prefix: "data-path"}
    own = vocabulary_of(plan.tokenizer)
    for prefix, key in named.items():
        record = read_json(Path(prefix).parent / MANIFEST)
        theirs = record.get("vocabulary", "") if f"{Path(prefix).name}.idx" in record.get("edges", {}) else ""
        if theirs not in ("", own):
            said = f"{prefix} was prepared with another tokenizer than {plan.tokenizer.name}, or with other files of it"
            hint = "its ids may be those of other tokens: take those that `neox data prepare` took, or prepare it again"
            yield config.problem(said, key, hint, "warning")
