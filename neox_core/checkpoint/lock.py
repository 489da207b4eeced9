"""One run at a time writes a folder of checkpoints: two would write the same names, and publish a mixture."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from neox_core.checkpoint.agree import agree
from neox_core.checkpoint.publish import cannot_write
from neox_core.errors import CheckpointError
from neox_core.files import lock

if TYPE_CHECKING:
    import torch

    from neox_core.parallel.groups import Groups

PATIENCE_S = 10.0
"""Seconds to wait until the ranks of a run that was just killed are gone."""


def claim(save: str | None, groups: Groups, device: torch.device, patience_s: float = PATIENCE_S) -> None:
    """Lock `save` until this process ends. Collective; one rank holds the lock for all.

    Raises CheckpointError on every rank when another run holds it. A file system without locks is not protected.
    """
    failure: CheckpointError | None = None
    if save is not None and (groups.world is None or dist.get_rank() == 0):
        try:
            _lock(Path(save), time.monotonic() + patience_s)
        except CheckpointError as error:
            failure = error
    agree(failure, groups, device)


def _lock(folder: Path, deadline: float) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)  # left open
    except OSError as error:
        raise cannot_write(folder, error) from error
    while not lock(descriptor):
        if time.monotonic() >= deadline:
            os.close(descriptor)
            hint = "wait for it or stop it, or give this run a `save` of its own"
            raise CheckpointError(f"{folder}: another run is saving here", hint=hint)
        time.sleep(0.2)
