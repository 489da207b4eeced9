"""The tokenizer of a model in a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neox_core.checkpoint.contents import other_tokenizer
from neox_core.checkpoint.read import CheckpointReader
from neox_core.data.batches import build_tokenizer
from neox_core.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from neox_core.contracts import Tokenizer
    from neox_core.plan.runfile import RunPlan


def tokenizer_of(plan: RunPlan, checkpoint: Path) -> Tokenizer | None:
    """The tokenizer of a plan; None where it names none.

    checkpoint: one whose model is used with it. Raises CheckpointError where its run had another tokenizer, whose ids
    are those of other tokens, and DataError when the files cannot be read.
    """
    tokenizer = build_tokenizer(plan)
    if tokenizer is not None and (said := other_tokenizer(CheckpointReader(checkpoint), plan.data)):
        raise CheckpointError(said, hint="put back the files that it was trained with")
    return tokenizer
