"""What neox-curriculum offers."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Component, Problem, hookimpl
from neox_curriculum.rules import problems


@hookimpl
def neox_curricula() -> list[Component]:
    return [
        Component(
            "data_efficiency",
            "neox_curriculum.curriculum:DataEfficiency",
            "neox_curriculum.settings:DataEfficiencySettings",
            summary="Samples by difficulty, and layers that skip tokens (arXiv:2212.03597, arXiv:2211.11586)",
        ),
        Component(
            "curriculum_learning",
            "neox_curriculum.curriculum:SequenceLength",
            "neox_curriculum.settings:SeqlenSettings",
            summary="Sequences that grow longer (arXiv:2108.06084)",
        ),
    ]


@hookimpl
def neox_commands() -> list[Component]:
    return [
        Component(
            "difficulty",
            "neox_curriculum.command:difficulty",
            summary="Measure how hard samples are, for a curriculum.",
        )
    ]


@hookimpl
def neox_check_config(config: Any) -> Iterator[Problem]:
    return problems(config)
