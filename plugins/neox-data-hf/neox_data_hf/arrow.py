"""Reading Arrow files through a memory map: the ids stay in the page cache, shared by all processes of a machine.

A folder of `save_to_disk` has state.json, which names the files in order, each an Arrow stream of record batches.
Source: arrow_dataset.py of datasets.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa

from neox_core.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from neox_data_hf.settings import HFDataSettings

STATE = "state.json"


class HFSource:
    """One dataset. sizes: int32 [documents], tokens of each row."""

    def __init__(self, folder: Path, column: str) -> None:
        self._folder = folder
        self._values: list[NDArray[Any]] = []  # of each record batch, [tokens]
        starts: list[NDArray[np.int64]] = []
        sizes: list[NDArray[np.int64]] = []
        parts: list[NDArray[np.int32]] = []
        for file in _files(folder):
            for ids in _lists(file, column):
                bounds = np.asarray(ids.offsets, dtype=np.int64)
                starts.append(bounds[:-1])
                sizes.append(np.diff(bounds))
                parts.append(np.full(len(ids), len(self._values), dtype=np.int32))
                self._values.append(ids.values.to_numpy(zero_copy_only=True))
        nothing: list[NDArray[Any]] = [np.empty(0, np.int64)]
        self.sizes: NDArray[np.int32] = np.concatenate(sizes or nothing).astype(np.int32)
        self._starts: NDArray[np.int64] = np.concatenate(starts or nothing)
        self._parts: NDArray[np.int32] = np.concatenate(parts or nothing).astype(np.int32)
        self.dtype: np.dtype[Any] = (
            np.result_type(*(values.dtype for values in self._values)) if parts else np.dtype("i4")
        )

    def read(self, document: int, offset: int = 0, length: int | None = None) -> NDArray[Any]:
        """Ids [length] of one row, a read-only view. Raises IndexError outside of the row."""
        if not 0 <= document < len(self.sizes):
            raise IndexError(f"{self._folder}: no document {document}, there are {len(self.sizes)}")
        size = int(self.sizes[document])
        length = size - offset if length is None else length
        if offset < 0 or length < 0 or offset + length > size:
            raise IndexError(
                f"{self._folder}: document {document} has {size} tokens, not {offset} to {offset + length}"
            )
        start = int(self._starts[document]) + offset
        return self._values[self._parts[document]][start : start + length]


class HFBackend:
    """Folders of `datasets`; a prefix is the folder."""

    def __init__(self, settings: HFDataSettings) -> None:
        self._column = settings.hf_column

    def recognises(self, prefix: Path) -> bool:
        return (prefix / STATE).is_file()

    def files(self, prefix: Path) -> tuple[Path, ...]:
        return (*_files(prefix), prefix / STATE)

    def open(self, prefix: Path) -> HFSource:
        return HFSource(prefix, self._column)

    def create(self, prefix: Path, vocab_size: int) -> NoReturn:
        raise DataError(f"{prefix}: the format `hf` is read only", hint="write the dataset as mmap")


def _files(folder: Path) -> list[Path]:
    if (folder / "dataset_dict.json").is_file():
        several = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_dir()))
        raise DataError(f"{folder}: holds several datasets", hint=f"set data-path to one of them: {several}")
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        names = [str(each["filename"]) for each in state["_data_files"]]
        selected = state.get("_indices_files")
    except FileNotFoundError:
        raise DataError(
            f"{folder / STATE}: no such file",
            hint="set data-path to a folder that `save_to_disk` of datasets has written",
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{folder / STATE}: cannot be read: {error}") from error
    if selected:
        raise DataError(f"{folder}: is a selection of rows", hint="save it again after flatten_indices()")
    if any(Path(name).name != name for name in names):
        raise DataError(f"{folder / STATE}: names files outside of its folder")
    return [folder / name for name in names]


def _lists(path: Path, column: str) -> list[Any]:
    """The lists of ids of each record batch in a file."""
    try:
        with pa.ipc.open_stream(pa.memory_map(str(path))) as reader:
            schema = reader.schema
            if column not in schema.names:
                known = ", ".join(schema.names)
                raise DataError(f"{path}: has no column {column!r}; it has {known}", hint="set hf-column")
            kind = schema.field(column).type
            if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_integer(kind.value_type):
                raise DataError(f"{path}: column {column!r} holds {kind}, not lists of ids", hint="tokenize it first")
            batches = [batch.column(column) for batch in reader]
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if any(batch.null_count or batch.values.null_count for batch in batches):
        raise DataError(f"{path}: column {column!r} has empty cells", hint="write a list of ids in every row")
    return batches
