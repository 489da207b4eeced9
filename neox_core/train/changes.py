"""What a resumed run computes otherwise than the one that wrote its checkpoint, of all that loads all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from neox_core.plan.runfile import to_json

if TYPE_CHECKING:
    from neox_core.plan.runfile import RunPlan

_SAME_NUMBERS = {
    "model": {
        "compile",
        "init_method",
        "init_std",
        "kernels",
        "make_vocab_size_divisible_by",
        "output_init_method",
        "padded_vocab_size",
        "recompute",
    },
    "optim": {"decay_steps", "lr", "min_lr", "schedule", "warmup_steps", "zero_stage"},
    "precision": set[str](),
}
"""Of these parts of the plan, what changes no number of a step, or is compared elsewhere."""


def changes(then: Mapping[str, Any], now: RunPlan) -> list[str]:
    """A line for people, none where nothing has changed. then: run.json of the checkpoint."""
    mine = json.loads(to_json(now))
    found = [
        f"{path.removeprefix('optim.')}: {_shown(before)} there, {_shown(after)} here"
        for part, others in _SAME_NUMBERS.items()
        for key in sorted(then.get(part, {}).keys() & mine[part].keys() - others)
        for path, before, after in _different(f"{part}.{key}", then[part][key], mine[part][key])
    ]
    return [f"goes on otherwise than the run that wrote the checkpoint: {'; '.join(found)}"] if found else []


def _different(path: str, then: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Where two plain values differ; of a component its name, or else its settings."""
    if isinstance(then, dict) and isinstance(now, dict):
        keys: list[str] = sorted(then.keys() & now.keys())
        if "settings" in keys:
            keys = ["settings"] if then.get("name") == now.get("name") else ["name"]
        for key in keys:
            yield from _different(path if key in ("name", "settings") else f"{path}.{key}", then[key], now[key])
    elif then != now:
        yield path, then, now


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
