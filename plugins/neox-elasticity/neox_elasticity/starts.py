"""Whether `neox train` starts a run again after failures, and how it knows that it is one of these starts. Light."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from neox_elasticity.batch import BLOCK

STARTED = "NEOX_STARTED_AGAIN"
"""In the environment of a `neox train` that is one start of a run among several."""


def is_one_of_several() -> bool:
    """Whether another command has started this process, and starts the run again."""
    return STARTED in os.environ


def starts(
    config: Any, plan: Any, files: Sequence[Path], sets: Sequence[str], resume: str | None
) -> list[Callable[[], int]]:
    """What starts the runs of a config with max-restarts; none for other configs."""
    chosen = [each for each in config.components("callback") if each.entry.component.name == BLOCK]
    if is_one_of_several() or not chosen or chosen[0].settings.max_restarts is None:
        return []
    from neox_elasticity.command import elastic_run  # other runs need none of it

    return [elastic_run("neox train", config, files, sets, Path(plan.run_dir), resume=resume).run]
