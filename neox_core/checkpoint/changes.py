"""Config differences that change the results of a resumed run, though its checkpoint loads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_core.data.dataset import SPLITS
from neox_core.data.records import digest_of, prepared_hash_of, spread_hash_of, vocabulary_of
from neox_core.errors import CheckpointError
from neox_core.plan.runfile import to_json
from neox_core.untrusted import short

if TYPE_CHECKING:
    from neox_core.contracts import DataBackend
    from neox_core.plan.runfile import DataPlan, RunPlan

Contents = dict[str, list[str]]
BLOCKS, FEWEST_BLOCKS = 256, 4
"""Blocks hashed of all files of a dataset, and of each file where there are many: 1 MiB of a dataset of two files."""

_SAME_NUMBERS = {
    "data": {"backend", "num_workers", "prefix", "tokenizer", *SPLITS},
    "model": {
        "compile",
        "init_method",
        "init_std",
        "kernels",
        "make_vocab_size_divisible_by",
        "output_init_method",
        "padded_vocab_size",
        "recompute",
        "sparse_gradients",
    },
    "optim": {"decay_steps", "lr", "min_lr", "schedule", "warmup_steps", "whole_parameters", "zero_stage"},
    "precision": set[str](),
}
"""Fields of these parts of the plan that do not change the numbers of a step, or that other code compares."""


def changes(then: Mapping[str, Any], now: RunPlan, path: Path) -> list[str]:
    """A line for people, or none where nothing has changed. then: run.json of the checkpoint, read from `path`.

    Raises CheckpointError where it is not a plan.
    """
    try:
        return _changes(then, now)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: not the plan of a run: {short(error)}") from error


def _changes(then: Mapping[str, Any], now: RunPlan) -> list[str]:
    then, mine = _with_weights(then), _with_weights(json.loads(to_json(now)))
    found = [
        f"{path.removeprefix('optim.').removeprefix('data.')}: {_shown(before)} there, {_shown(after)} here"
        for part, others in _SAME_NUMBERS.items()
        for key in sorted(then.get(part, {}).keys() & mine[part].keys() - others)
        for path, before, after in _different(f"{part}.{key}", then[part][key], mine[part][key])
    ]
    return [f"differs from the run that wrote the checkpoint: {'; '.join(found)}"] if found else []


def contents_of(plan: DataPlan, backend: DataBackend) -> Contents:
    """Hashes of the contents of each dataset of the run and of its tokenizer, wherever their files are.

    Of each file, some blocks that are spread over it, so that hashing takes no time; after a space, the hash of the
    whole file in the manifest of a prepared dataset.
    """
    with plan.backend.blamed():
        found = {split: [_content(backend, prefix) for prefix in named] for split, named in _prefixes(plan).items()}
    return found if plan.tokenizer is None else {**found, "tokenizer": [vocabulary_of(plan.tokenizer)]}


def other_contents(then: Contents, now: Contents, plan: DataPlan) -> list[str]:
    """A line for people, or none where nothing has changed or is known. then, now: from `contents_of`."""
    names = {**_prefixes(plan), "tokenizer": ["the tokenizer"]}
    found = [
        f"{name} ({part})" if part in SPLITS else name
        for part in then.keys() & now.keys()
        for name, before, after in zip_longest(names[part], then[part], now[part])
        if after is not None and _differ(before, after)
    ]
    return [f"other contents than when the checkpoint was written: {', '.join(sorted(found))}"] if found else []


def _content(backend: DataBackend, prefix: str) -> str:
    files = [file for file in backend.files(Path(prefix)) if file.is_file()]
    blocks = max(FEWEST_BLOCKS, BLOCKS // max(1, len(files)))
    told = [prepared_hash_of(file) for file in files]
    spread = digest_of(*(spread_hash_of(file, blocks) for file in files))
    return f"{spread} {digest_of(*told)}" if all(told) else spread


def _differ(before: str | None, after: str) -> bool:
    """Compare the hashes of whole files where both sides have them, since a manifest may be left from another
    dataset.
    """
    if before is None:
        return True
    return any(then != now for then, now in zip(before.split(), after.split(), strict=False))


def _prefixes(plan: DataPlan) -> dict[str, list[str]]:
    """The datasets of each split; a single dataset that is split counts as that of the training."""
    if plan.prefix is not None and not plan.train:
        return {"train": [plan.prefix]}
    return {split: [each.prefix for each in getattr(plan, split)] for split in SPLITS}


def _with_weights(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The plan with the weights of its datasets under names of their own."""
    data = plan.get("data", {})
    weights = {f"{split}-data-weights": [each["weight"] for each in data.get(split, ())] for split in SPLITS}
    return {**plan, "data": {**data, **weights}}


def _different(path: str, then: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """The paths where two plain values differ; of a component its name, else its settings."""
    if isinstance(then, dict) and isinstance(now, dict):
        keys: list[str] = sorted(then.keys() & now.keys())
        if "settings" in keys:
            keys = ["settings"] if then.get("name") == now.get("name") else ["name"]
        for key in keys:
            yield from _different(path if key in ("name", "settings") else f"{path}.{key}", then[key], now[key])
    elif then != now:
        yield path, then, now


def _shown(value: Any) -> str:
    return short(value if isinstance(value, str) else json.dumps(value))
