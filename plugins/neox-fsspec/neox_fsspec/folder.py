"""A folder that is used as a store: without renamed folders and locks, so that any mounted file system will do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from neox_core.files import replacing

_UNFINISHED = ".unfinished"


class Folder:
    """The files below a folder, by their paths in it."""

    def __init__(self, place: str, settings: None) -> None:
        self._folder = Path(place)

    def list(self) -> Iterable[str]:
        files = (path for path in self._folder.rglob("*") if path.is_file() and not path.name.endswith(_UNFINISHED))
        return [path.relative_to(self._folder).as_posix() for path in files]

    def read(self, key: str, first: int, last: int) -> bytes:
        try:
            with (self._folder / key).open("rb") as file:
                file.seek(first)
                return file.read(max(0, last - first))
        except (IsADirectoryError, NotADirectoryError):
            raise FileNotFoundError(f"{self._folder / key} is not a file") from None

    def write(self, key: str, file: Path) -> None:
        path = self._folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, path.with_name(f".{path.name}.{os.getpid()}{_UNFINISHED}")) as new:
            shutil.copyfile(file, new)
            with new.open("rb") as written:
                os.fsync(written.fileno())

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            (self._folder / key).unlink(missing_ok=True)
