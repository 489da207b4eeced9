"""What a command needs of a run: its model with the weights of a checkpoint, its tokenizer, its samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen

from neox_core.checkpoint.checkpointer import find_checkpoint
from neox_core.checkpoint.read import read_weights
from neox_core.data.batches import Reader, build_batches
from neox_core.data.tokenizer import padded_vocab
from neox_core.errors import CheckpointError
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_gpt.tokenizer import tokenizer_of

if TYPE_CHECKING:
    from neox_core.contracts import Tokenizer
    from neox_core.contracts.objective import Split
    from neox_core.plan.runfile import RunPlan


@frozen
class LoadedRun:
    """A run in one process, without process groups.

    checkpoint: where the weights are from. model: whole, in fp32, in evaluation; its call makes passes. The loss of a
    batch is `model(lambda run: run(batch[:, :-1]).cross_entropy(batch[:, 1:]))`. tokenizer: None where the plan names
    none.
    """

    plan: RunPlan
    checkpoint: Path
    model: Any
    tokenizer: Tokenizer | None
    vocab_size: int

    def batches(self, split: Split = "valid") -> Reader:
        """Micro-batches on the host, int64 [micro_batch, seq + 1]: those that an evaluation of the run reads, or those
        of its training from the first step on. Raises DataError for data that cannot be read.
        """
        return build_batches(self.plan, split, data_rank=0, data_size=1, first_step=0, vocab_size=self.vocab_size)


def load_run(plan: RunPlan, checkpoint: Path | None = None, device: str = "cpu") -> LoadedRun:
    """The model of a plan with the weights of a checkpoint. Imports torch; it starts no ranks.

    checkpoint: a `save` folder, or one checkpoint in it; None: the plan's `save`, else its `load`.
    Raises CheckpointError where there is none, or it is damaged, of another model or of another tokenizer.
    """
    folder = checkpoint or next((Path(each) for each in (plan.checkpoint.save, plan.checkpoint.load) if each), None)
    found = None if folder is None else find_checkpoint(folder)
    if found is None:
        raise CheckpointError(
            f"{folder or 'the config'}: no checkpoint here", hint="train the model first, or name a checkpoint's folder"
        )
    tokenizer = tokenizer_of(plan, found)
    vocab_size = padded_vocab(plan.model, tokenizer.vocab_size if tokenizer else None)
    context = BuildContext(torch.device(device), torch.float32, Groups(None, None, 0, 1), plan.train.seed)
    eod = tokenizer.eod if tokenizer else None
    model: Any = plan.architecture.load()[0](plan.model).build(vocab_size, context, read_weights(found), eod=eod)
    return LoadedRun(plan, found, model.eval(), tokenizer, vocab_size)
