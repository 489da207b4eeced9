"""What neox-elasticity offers."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from neox_core.api import Component, Problem, hookimpl

STARTED = "NEOX_STARTED_AGAIN"
"""In the environment of a `neox train` that is one start of a run among several."""


@hookimpl
def neox_callbacks() -> list[Component]:
    return [
        Component(
            "elasticity",
            "neox_elasticity.history:History",
            "neox_elasticity.settings:ElasticitySettings",
            summary="One batch for many numbers of ranks; keeps in checkpoints on how many the steps were made",
            planner="neox_elasticity.batch:plan_batch",
        )
    ]


@hookimpl
def neox_commands() -> list[Component]:
    return [
        Component(
            "elastic", "neox_elasticity.command:elastic", summary="Train, also while ranks and hosts come and go."
        )
    ]


@hookimpl
def neox_check_config(config: Any, cluster: Any) -> Iterator[Problem]:
    from neox_elasticity.checks import problems  # listing plugins needs none of it

    return problems(config, cluster)


@hookimpl
def neox_train(
    config: Any, plan: Any, files: Sequence[Path], sets: Sequence[str], resume: str | None
) -> list[Callable[[], int]]:
    if STARTED in os.environ:  # by the command that starts runs again
        return []
    chosen = [each for each in config.components("callback") if each.entry.component.name == "elasticity"]
    if not chosen or chosen[0].settings.max_restarts is None:
        return []
    from neox_elasticity.command import elastic_run

    return [elastic_run("neox train", config, files, sets, Path(plan.run_dir), resume=resume).run]
