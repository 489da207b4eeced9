"""Whether the datasets and the tokenizer of a run hold what they held when a checkpoint was written."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from neox_core.contracts.objective import SPLITS
from neox_core.data.records import digest_of, prepared_hash_of, spread_hash_of, vocabulary_of
from neox_core.plan.stored.state import stored_from_plain

if TYPE_CHECKING:
    from neox_core.checkpoint.read import CheckpointReader
    from neox_core.contracts import DataBackend
    from neox_core.plan.runfile import DataPlan

Contents = dict[str, list[str]]
BLOCKS, FEWEST_BLOCKS = 256, 4
"""Blocks hashed of all files of a dataset, and of each file where there are many: 1 MiB of a dataset of two files."""


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


def other_tokenizer(checkpoint: CheckpointReader, plan: DataPlan) -> str:
    """What to say where the tokenizer of a run is known not to be that of the run that wrote a checkpoint; else "".

    Raises CheckpointError for a checkpoint that is damaged.
    """
    stored = stored_from_plain(checkpoint.state(), checkpoint.folder, checkpoint.manifest.step)
    then = stored.state.data_contents.get("tokenizer")
    if plan.tokenizer is None or not then or then[0] == vocabulary_of(plan.tokenizer):
        return ""
    own = ", ".join(f"{name}: {value}" for name, value in plan.tokenizer.settings.items() if value is not None)
    return f"{checkpoint.folder}: its run had another tokenizer than this {plan.tokenizer.name} ({own})"


def _content(backend: DataBackend, prefix: str) -> str:
    files = [file for file in backend.files(Path(prefix)) if file.is_file()]
    blocks = max(FEWEST_BLOCKS, BLOCKS // max(1, len(files)))
    told = [prepared_hash_of(file) for file in files]
    spread = digest_of(*(spread_hash_of(file, blocks) for file in files))
    return f"{spread} {digest_of(*told)}" if all(told) else spread


def _differ(before: str | None, after: str) -> bool:
    """Compare hashes of whole files where both sides have them: a manifest may be left from another dataset."""
    if before is None:
        return True
    return any(then != now for then, now in zip(before.split(), after.split(), strict=False))


def _prefixes(plan: DataPlan) -> dict[str, list[str]]:
    """The datasets of each split; a single dataset that is split counts as the training data."""
    if plan.prefix is not None and not plan.train:
        return {"train": [plan.prefix]}
    return {split: [each.prefix for each in getattr(plan, split)] for split in SPLITS}
