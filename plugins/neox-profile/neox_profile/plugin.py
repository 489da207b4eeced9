"""Offers the profiler of steps."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Component, Problem, hookimpl

MOST_STEPS = 100
"""A trace has some 10 MB a step, and is in memory until the last one."""


@hookimpl
def neox_callbacks() -> list[Component]:
    summary = "Writes traces of some steps (torch.profiler), and of a GPU's memory"
    return [
        Component(
            "profile", "neox_profile.profiler:profile_steps", "neox_profile.settings:ProfileSettings", summary=summary
        )
    ]


@hookimpl
def neox_check_config(config: Any, cluster: Any) -> Iterator[Problem]:
    first, last = config.value("profile.first"), config.value("profile.last")
    if first is None:
        named = any(each.entry.component.name == "profile" for each in config.components("callback"))
        written = [key for key in ("last", "ranks", "nsys") if config.is_set(f"profile.{key}")]
        if named or written:
            hint = "name the first step that is profiled"
            yield config.problem("is required", "profile.first", hint)
        return
    steps, last = config.value("train_iters"), first if last is None else last
    if last < first:
        yield config.problem(f"{last} comes before profile.first {first}", "profile.last", "raise it")
    elif last > steps:
        key = "profile.first" if first > steps else "profile.last"
        said = f"{first if first > steps else last}: the run has {steps} steps"
        yield config.problem(said, key, "lower it")
    elif last - first >= MOST_STEPS:
        said = f"{first} to {last} are {last - first + 1} steps: at most {MOST_STEPS} are profiled"
        yield config.problem(said, "profile.last", "lower it: a trace of a few steps shows what others do")
    beyond = [rank for rank in config.value("profile.ranks") if rank >= cluster.num_ranks]
    if beyond:
        said = f"{beyond[0]}: the run has ranks 0 to {cluster.num_ranks - 1}"
        yield config.problem(said, "profile.ranks", "name ranks of the run")
    if config.value("profile.nsys") and cluster.device == "cpu":
        said = "has no effect on a CPU: a trace of torch is written"
        yield config.problem(said, "profile.nsys", severity="note")
