"""run.json as earlier versions wrote it, brought to today's form: `format` has been 1 since the first."""

from collections.abc import Mapping
from typing import Any

ADDED: Mapping[str, Mapping[str, Any]] = {"train": {"max_skipped_steps": 40, "stall_timeout_s": 300}}
"""Block -> fields that some run.json lacks, with the value that the key had by default when it was added."""
REMOVED: Mapping[str, tuple[str, ...]] = {"checkpoint": ("tag_validation",)}
"""Block -> fields that some run.json has, and that say nothing any more."""


def as_today(run: dict[str, Any]) -> dict[str, Any]:
    """The content of a run.json with the fields of today's. What is no block of fields is left for others to refuse."""
    blocks = {name: dict(run[name]) for name in {*ADDED, *REMOVED} if isinstance(run.get(name), dict)}
    for name, block in blocks.items():
        kept = {key: value for key, value in block.items() if key not in REMOVED.get(name, ())}
        blocks[name] = {**ADDED.get(name, {}), **kept}
    return {**run, **blocks}
