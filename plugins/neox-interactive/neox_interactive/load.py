"""`neox_core.load`: the model in a checkpoint, with its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from neox_gpt.api import saved_run

from neox_core.errors import UsageError
from neox_core.hooks.loader import load_plugins
from neox_interactive.arguments import path_of

if TYPE_CHECKING:
    from neox_interactive.model import Model


def load(folder: str | Path, device: str = "cpu") -> Model:
    """The model in a checkpoint, whole on one device whatever the layout of the run, in fp32 and in evaluation.

    folder: a run's `save`, a folder or an address, or one checkpoint in it. device: of torch, such as "cuda:1". Imports
    torch. Raises CheckpointError where there is no checkpoint, or it is damaged, or another program's: its hint is then
    the command that imports it.
    """
    path_of(folder, "load: folder")
    if not isinstance(device, str):
        raise UsageError(f'load: device is a text, such as "cuda:1", not {device!r:.80}')
    checkpoint, plan = saved_run(folder, load_plugins())
    from neox_interactive.model import load_model  # imports torch

    return load_model(plan, checkpoint, device)
