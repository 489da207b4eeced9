"""The weights that a retriever starts with: those of a BERT, or those of another retriever."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from neox_gpt.api import teacher_in, unlike

from neox_core.checkpoint.read import CheckpointReader
from neox_core.errors import CheckpointError
from neox_core.parallel.tensor import cut_of

if TYPE_CHECKING:
    from neox_retrieval.planner import RetrieverPlan

OF_TOKENS = ("transform.", "head.")
"""The first parts of the names of what a BERT has for its own objective."""


def start(plan: RetrieverPlan, model: Any) -> None:
    """Give `model` the weights that its plan names, or leave the drawn ones. Every rank reads them for itself.

    Heads that are drawn are the same, so that with encoders of one BERT a text is near itself from the start. Raises
    CheckpointError for a checkpoint that is damaged or of a model that is not alike.
    """
    with torch.no_grad():
        model.block_head.weight.copy_(model.query_head.weight)
    folder = plan.ict_load or plan.bert_load
    if folder is None:
        return
    checkpoint = teacher_in(Path(folder))
    why = unlike(plan, checkpoint)
    if why is not None:
        raise CheckpointError(
            f"{checkpoint}: is of another model: {why}", hint="set the keys of the model as it has them"
        )
    reader = CheckpointReader(checkpoint)
    reader.verify(lambda _, file: ".optimizer." not in file)
    shapes = reader.shapes("weight")
    of_bert = plan.ict_load is None
    parameters = dict(model.named_parameters())
    named = {name: _theirs(name) if of_bert else name for name in parameters}
    wanted = {theirs for theirs in named.values() if theirs is not None}
    found = {name for name in shapes if not (of_bert and name.startswith(OF_TOKENS))}
    if wanted != found:
        name = min(wanted ^ found)
        where = "the checkpoint" if name in found else "the retriever"
        raise CheckpointError(f"{checkpoint}: is of another model: {name} is in {where} alone")
    with torch.no_grad():
        for name, parameter in parameters.items():
            theirs = named[name]
            if theirs is None:
                continue
            cut = cut_of(parameter)
            shape = tuple(parameter.shape) if cut is None else cut.whole_shape(tuple(parameter.shape))
            if shape != tuple(shapes[theirs]):
                message = f"{checkpoint}: is of another model: {theirs} is {shapes[theirs]} and should be {shape}"
                raise CheckpointError(message, hint="use its vocabulary and the keys of its model")
            whole = reader.tensor("weight", theirs)
            parameter.copy_(whole if cut is None else cut.of(whole))


def _theirs(name: str) -> str | None:
    """The name in a BERT of a parameter of a retriever; None: a head's, which a BERT has not."""
    tower, _, own = name.partition(".")
    return own if tower in ("query", "block") else None
