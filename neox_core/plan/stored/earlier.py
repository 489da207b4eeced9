"""run.json as earlier versions wrote it, brought to today's form: `format` has been 1 since the first."""

from collections.abc import Mapping
from typing import Any

ADDED: Mapping[str, Mapping[str, Any]] = {
    "train": {"max_skipped_steps": 40, "stall_timeout_s": 300},
    "optim": {"uses": []},
}
"""Block -> fields that some run.json lacks, with the value that the key had by default when it was added."""
LISTS = ("callbacks", "evaluators")
"""Lists of components that some run.json lacks: there were none."""
REMOVED: Mapping[str, tuple[str, ...]] = {"checkpoint": ("tag_validation",)}
"""Block -> fields that some run.json has, and that say nothing any more."""
CHOSEN: Mapping[str, tuple[str, str, str]] = {
    "architecture": ("architecture", "gpt", "neox-gpt"),
    "objective": ("objective", "causal-lm", "neox-causal-lm"),
    "engine_component": ("engine", "deepspeed", "neox-deepspeed"),
}
"""Field -> (kind, name, plugin) of what every run had before there was a choice."""

CURVE = {"lr_decay_version": 1}
"""The setting that these schedules of one plugin got later, and the curve that they were before."""
CURVES = ("neox-lr", ("constant", "cosine", "exponential", "linear"))


def as_today(run: dict[str, Any]) -> dict[str, Any]:
    """The content of a run.json with today's fields. What is not a block of fields is left for others to refuse."""
    blocks = {name: dict(run[name]) for name in {*ADDED, *REMOVED} if isinstance(run.get(name), dict)}
    for name, block in blocks.items():
        kept = {key: value for key, value in block.items() if key not in REMOVED.get(name, ())}
        blocks[name] = {**ADDED.get(name, {}), **kept}
    schedule = blocks.get("optim", {}).get("schedule")
    if isinstance(schedule, dict) and schedule.get("plugin") == CURVES[0] and schedule.get("name") in CURVES[1]:
        settings = schedule.get("settings")
        if isinstance(settings, dict):
            blocks["optim"]["schedule"] = {**schedule, "settings": {**CURVE, **settings}}
    version = run.get("neox_version")
    rest: dict[str, Any] = {"version": version if isinstance(version, str) else "", "target": ""}
    rest |= {"settings_class": None, "settings": {}, "planner": None}  # nothing vouches for it
    chosen = {f: {"kind": k, "name": n, "plugin": p, **rest} for f, (k, n, p) in CHOSEN.items() if f not in run}
    return {**{key: [] for key in LISTS}, **run, **blocks, **chosen}


def terms_today(terms: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint stored of its schedule, by config key, with the key that the schedule of `now` has today."""
    key = "lr-decay-version"
    return {**({key: 1} if key in now and terms.get("lr-decay-style") in CURVES[1] else {}), **terms}
