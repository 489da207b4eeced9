"""What neox-elasticity offers."""

from collections.abc import Callable, Iterator
from typing import Any

from neox_core.api import Component, Problem, hookimpl


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
def neox_train(config: Any, plan: Any, files: Any, sets: Any, resume: str | None) -> list[Callable[[], int]]:
    from neox_elasticity.starts import starts

    return starts(config, plan, files, sets, resume)
