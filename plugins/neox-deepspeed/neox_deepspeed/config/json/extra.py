"""deepspeed_extra_args: the engine's own keys, which neox has none for."""

from collections.abc import Mapping
from typing import Any


def merge(engine: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """`engine` with `extra` added, block by block. What both have stays as `engine` has it: a rule refuses that."""
    merged = {**extra, **engine}
    for key in engine.keys() & extra.keys():
        if isinstance(engine[key], Mapping) and isinstance(extra[key], Mapping):
            merged[key] = merge(engine[key], extra[key])
    return merged
