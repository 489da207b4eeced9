"""Offers the feed-forward `moe`, and reads the keys by which GPT-NeoX asks for one."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Component, Problem, hookimpl


@hookimpl
def neox_feed_forwards() -> list[Component]:
    return [
        Component(
            name="moe",
            target="neox_moe.layer:mixture",
            settings="neox_moe.settings:MoESettings",
            planner="neox_moe.size:moe_size",
            summary="A mixture of experts: a router sends each token to a few of several MLPs (arXiv:2101.03961).",
        )
    ]


@hookimpl
def neox_dialects() -> list[Component]:
    return [Component("moe", "neox_moe.older:DIALECT", summary="GPT-NeoX's keys of mixtures of experts.")]


@hookimpl
def neox_check_config(config: Any) -> Iterator[Problem]:
    for chosen in config.components("feed forward"):
        if chosen.entry.plugin.id == "neox-moe":
            from neox_moe.rules import problems  # a list of plugins needs none of it

            yield from problems(config, chosen.settings)
