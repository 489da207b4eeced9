"""Facts of GPT-NeoX ea7aefd: the keys and values of the 59 files of its configs/, and its defaults."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[1] / "data/gpt-neox"
FACTS = json.loads((DATA / "recipes.json").read_text())
DEFAULTS = json.loads((DATA / "defaults.json").read_text())


def recipe(name: str) -> dict[str, Any]:
    """The keys of one file."""
    own, shared = dict(FACTS["files"][name]), FACTS["shared"]
    without, keys = own.pop("<without>", None), own.pop("<with>", ())
    same = [key for key in shared if key not in without] if without is not None else keys
    return {key: shared[key] for key in same} | own


def written(names: Iterable[str], folder: Path) -> list[Path]:
    """The files in a folder, without comments, as JSON, which YAML is too."""
    files = []
    for name in names:
        files.append(folder / f"{name.replace('/', '-')}.yml")
        files[-1].write_text(json.dumps(recipe(name)))
    return files
