"""Whether all ranks are about to write the same checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist

from neox_core.errors import CheckpointError

if TYPE_CHECKING:
    from neox_core.parallel.groups import Groups


def agreed_step(
    step: int,
    mode: Literal["ignore", "warn", "fail"],
    groups: Groups,
    device: torch.device,
    say: Callable[[str], None],
) -> int:
    """The step that names the checkpoint. Collective, but for "ignore".

    Where ranks disagree: "warn" says so and takes the first rank's, "fail" raises CheckpointError on every rank,
    "ignore" does not look and returns this rank's own.
    """
    if mode == "ignore" or groups.world is None:
        return step
    mine = torch.tensor([step], device=device)
    steps = [torch.empty_like(mine) for _ in range(dist.get_world_size(groups.world))]
    dist.all_gather(steps, mine, group=groups.world)
    named = [int(each) for each in steps]
    if len(set(named)) > 1:
        listed = ", ".join(f"rank {rank}: {each}" for rank, each in enumerate(named))
        message = f"ranks are about to save different steps: {listed}"
        if mode == "fail":
            raise CheckpointError(message, hint="checkpoint.tag_validation: Warn saves under the first rank's step")
        say(f"warning: {message}; the first rank's counts")
    return named[0]
