"""GPT-NeoX's checkpoints as a format of `neox checkpoint import`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from neox_checkpoints.neox.config import read_config
from neox_checkpoints.neox.folder import NeoXFolder, find_step, is_universal, read_folder
from neox_core.errors import CheckpointError

if TYPE_CHECKING:
    from neox_checkpoints.contracts import ForeignCheckpoint


class GPTNeoX:
    """See `contracts.CheckpointFormat`."""

    def recognises(self, folder: Path) -> str | None:
        step = find_step(folder)
        if step is None or is_universal(step):
            return None
        found = read_folder(step)
        return f"{_form(found)}, {_size(found)}, in {step.name}" if found.ranks else None

    def open(self, folder: Path, configs: Sequence[Path], *, optimizer: bool) -> ForeignCheckpoint:
        step = find_step(folder)
        found = read_folder(step) if step is not None else None
        if step is not None and is_universal(step):
            raise CheckpointError(
                f"{step}: a universal checkpoint of DeepSpeed, which does not name GPT-NeoX's layers",
                hint="import the checkpoint that it was made from",
            )
        if step is None or found is None or not found.ranks:
            if next((step or folder).glob("zero_pp_rank_*_model_states.pt"), None) is not None:
                raise CheckpointError(
                    f"{step or folder}: is of ZeRO stage 3, which divides the weights too",
                    hint="have GPT-NeoX load it and save it at ZeRO stage 1 or 2",
                )
            raise CheckpointError(
                f"{folder}: no checkpoint of GPT-NeoX here", hint="name its `save` folder, or global_stepN in it"
            )
        files = list(configs) or found.configs
        if not files:
            raise CheckpointError(
                f"{step}: has no folder configs with the files of the run", hint="name them: --config FILE"
            )
        from neox_checkpoints.neox.checkpoint import opened
        from neox_checkpoints.neox.ranks import read_ranks

        read_config(files)  # a mistake in them is found before large files are read
        return opened(read_ranks(found, optimizer=optimizer), files, optimizer=optimizer)


def _form(found: NeoXFolder) -> str:
    if not found.layers:
        return "a checkpoint of GPT-NeoX without a pipeline (pipe-parallel-size: 0)"
    bf16 = any(each.name.startswith("bf16_") for each in found.zero.values())
    return "a checkpoint of GPT-NeoX in bf16" if bf16 else "a checkpoint of GPT-NeoX"


def _size(found: NeoXFolder) -> str:
    tensor = 1 + max((rank for _, rank in found.layers), default=len(found.ranks) - 1)
    stages = max(1, len(found.ranks) // tensor)
    zero = f"ZeRO over {found.data_ranks} data ranks" if found.zero else "no ZeRO"
    return f"tensor ranks {tensor}, stages {stages}, {zero}"
