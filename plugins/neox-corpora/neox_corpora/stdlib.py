"""The source text of Python's standard library, which every machine has."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

from neox_data.api import Corpus

from neox_core.errors import DataError

NOT_OURS = frozenset({"site-packages", "dist-packages", "__pycache__"})
NOT_EVERYWHERE = frozenset({"test", "tests", "idle_test"})  # Linux distributions package them apart


class StandardLibrary:
    """Of the running Python, in an order that mixes its packages but never changes.

    Without its tests, which not every Python comes with: two machines should have about the same text. Splits take
    documents from the end: in the order of their names, the validation would be all of one package.
    """

    def __init__(self, settings: None) -> None: ...

    def open(self, folder: Path) -> Corpus:
        """A file a document. Raises DataError for a Python that has no source."""
        root = Path(sysconfig.get_path("stdlib"))
        left_out = NOT_OURS | NOT_EVERYWHERE
        found = (path for path in root.rglob("*.py") if left_out.isdisjoint(path.relative_to(root).parts))
        files = sorted(found, key=lambda path: hashlib.sha256(path.relative_to(root).as_posix().encode()).digest())
        if not files:
            hint = "use a Python that has its standard library as files"
            raise DataError(f"{root}: holds no Python source", hint=hint)
        return Corpus(tuple(files), root, skip_undecodable=True)
