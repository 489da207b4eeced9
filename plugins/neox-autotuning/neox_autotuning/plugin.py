"""What neox-autotuning offers."""

from collections.abc import Iterator
from typing import Any

from neox_autotuning.rules import problems
from neox_core.api import Component, ConfigSection, Problem, hookimpl


@hookimpl
def neox_config_sections() -> list[ConfigSection]:
    return [
        ConfigSection("autotuning", "neox_autotuning.settings:AutotuningSettings", "The search that `neox tune` does.")
    ]


@hookimpl
def neox_commands() -> list[Component]:
    return [
        Component(
            "tune", "neox_autotuning.tune:tune", summary="Find the fastest micro-batch and ZeRO stage by trying them."
        )
    ]


@hookimpl
def neox_check_config(config: Any) -> Iterator[Problem]:
    return problems(config)
