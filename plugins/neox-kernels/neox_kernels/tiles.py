"""Tables of tile sizes: how a kernel splits its work, by architecture, width and dtype.

A table is a CSV file: one is next to the kernels of a plugin, another, which wins, in the user's cache folder.
People may edit both, so anything that is not exactly a table is an error that names the line.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import asdict, astuple, fields, frozen

from neox_core.errors import ConfigError
from neox_core.files import cache_folder, read_bytes, replacing
from neox_core.terminal import cut

LARGEST_TABLE = 2**20
"""Bytes."""
LARGEST_BLOCK, MOST_WARPS, MOST_STAGES = 2**14, 16, 8
_WORD = re.compile(r"[\w.:-]{1,200}", re.ASCII)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,6}", re.ASCII)
_DTYPES = ("fp32", "bf16", "fp16")


@frozen
class Tile:
    """block: elements that a program processes together; warps, stages: of the program. 0: the kernel's own number."""

    block: int = 0
    warps: int = 0
    stages: int = 0


@frozen
class Row:
    """The tile of a kernel, by its qualified name, where the rows of the op's first tensor have at most `width`
    elements, a power of two, and more than half of that. by: what measured it, and on which device.
    """

    kernel: str
    architecture: str
    width: int
    dtype: str
    block: int
    warps: int
    stages: int
    by: str

    @property
    def tile(self) -> Tile:
        """The tile of the row."""
        return Tile(self.block, self.warps, self.stages)

    @property
    def place(self) -> tuple[str, str, int, str]:
        """The key of a row: a table has one tile for each."""
        return self.kernel, self.architecture, self.width, self.dtype


class Tiled(ABC):
    """A kernel that can split its work in several ways, as the tables say. tiles: the table in its plugin."""

    tiles: Path

    def set_up(self, name: str, architecture: str) -> tuple[str, dict[str, Any]]:
        """Use the tiles of the tables from now on: see `contracts.Kernel`."""
        tiles = tiles_for(self, name, architecture)
        self.use_tiles(tiles)
        rows = {f"{dtype} {width}": astuple(tile) for (dtype, width), tile in tiles.items()}
        return (f"{len(rows)} of its tiles by table", {"tiles": rows}) if rows else ("", {})

    def digest_here(self) -> str:
        """Of the user's table."""
        return own_digest()

    @abstractmethod
    def candidates(self, width: int) -> Sequence[Tile]:
        """The tiles for rows of `width` elements, a power of two, `Tile()` first; empty: there is no choice."""

    @abstractmethod
    def use_tiles(self, tiles: Mapping[tuple[str, int], Tile]) -> None:
        """Use these tiles from now on, by (dtype, width), and the kernel's own for all others."""

    @abstractmethod
    def tuning_examples(self, dtype: torch.dtype, device: torch.device) -> Iterable[tuple[Any, ...]]:
        """Arguments to measure it on, each for one width."""


def width_of(shape: Sequence[int]) -> int:
    """The width of tensors of that shape in a table: a power of two."""
    return 1 << (int(shape[-1]) - 1).bit_length()


def tiles_for(kernel: Tiled, name: str, architecture: str, own: Path | None = None) -> dict[tuple[str, int], Tile]:
    """The tiles of a kernel in the tables; the user's rows win over the plugin's.

    name: qualified. own: the user's table instead of the one in the cache folder. Raises ConfigError for an invalid
    table, and for a tile that the kernel does not accept.
    """
    found = {}
    for path in (kernel.tiles, own or own_table()):
        for row in read_table(path) if path is not None else ():
            if (row.kernel, row.architecture) != (name, architecture):
                continue
            if row.tile not in kernel.candidates(row.width):
                op = name.partition(":")[2].partition(".")[0]
                raise _fault(path, f"{name} does not accept {row.tile}", f"neox kernels tune {op}")
            found[row.dtype, row.width] = row.tile
    return found


def own_table() -> Path | None:
    """The default output of `neox kernels tune`; None where the user has no cache folder."""
    try:
        return cache_folder() / "tiles.csv"
    except OSError:
        return None


def own_digest() -> str:
    """A digest of the user's table, which must be the same on all ranks."""
    path = own_table()
    rows = read_table(path) if path is not None else ()
    return hashlib.sha256(_text(rows).encode()).hexdigest() if rows else "none"


def read_table(path: Path) -> tuple[Row, ...]:
    """The rows of a table; empty where there is no file. Raises ConfigError that names the invalid line."""
    try:
        text = read_bytes(path, LARGEST_TABLE).decode("ascii")
        lines = list(csv.reader(io.StringIO(text), strict=True))
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _fault(path, str(getattr(error, "strerror", None) or error)) from error
    names = [each.name for each in fields(Row)]
    if not lines or lines[0] != names:
        raise _fault(path, f"line 1 is not {','.join(names)}")
    rows: dict[tuple[Any, ...], Row] = {}
    for number, values in enumerate(lines[1:], 2):
        row = _row(path, number, dict(zip(names, values, strict=False)) if len(values) == len(names) else {})
        if row.place in rows:
            raise _fault(path, f"line {number} has the key of an earlier one")
        rows[row.place] = row
    return tuple(rows.values())


def _row(path: Path, number: int, values: Mapping[str, str]) -> Row:
    if not values:
        raise _fault(path, f"line {number} does not have {len(fields(Row))} values")
    powers = {str(2**each) for each in range(31)}
    allowed = {
        "kernel": (bool(_WORD.fullmatch(values["kernel"])), "the name of a kernel"),
        "architecture": (bool(_WORD.fullmatch(values["architecture"])), "the name of an architecture"),
        "width": (values["width"] in powers, "a power of two"),
        "dtype": (values["dtype"] in _DTYPES, f"one of {', '.join(_DTYPES)}"),
        "block": (_is_power(values["block"], LARGEST_BLOCK), f"0 or a power of two, at most {LARGEST_BLOCK}"),
        "warps": (_is_power(values["warps"], MOST_WARPS), f"0 or a power of two, at most {MOST_WARPS}"),
        "stages": (_is_number(values["stages"], MOST_STAGES), f"a number from 0 to {MOST_STAGES}"),
        "by": (len(values["by"]) <= 200 and values["by"].isprintable(), "at most 200 characters that can be printed"),
    }
    for name, (holds, what) in allowed.items():
        if not holds:
            raise _fault(path, f"line {number}: {name} {cut(ascii(values[name]), 60)} is not {what}")
    numbers = {name: int(values[name]) for name in ("width", "block", "warps", "stages")}
    return Row(values["kernel"], values["architecture"], dtype=values["dtype"], by=values["by"], **numbers)


def _is_number(text: str, most: int) -> bool:
    return bool(_NUMBER.fullmatch(text)) and int(text) <= most


def _is_power(text: str, most: int) -> bool:
    return _is_number(text, most) and int(text) & (int(text) - 1) == 0


def _fault(path: Path | None, what: str, hint: str = "") -> ConfigError:
    return ConfigError(f"{path}: not a table of tiles: {what}", hint=f"remove it{', or ' + hint if hint else ''}")


def write_table(path: Path, rows: Iterable[Row]) -> None:
    """Add rows to a table, replacing those with the same key, atomically. Raises ConfigError, OSError."""
    merged = {row.place: row for row in (*read_table(path), *rows)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(_text(sorted(merged.values(), key=lambda row: row.place)), encoding="ascii")


def _text(rows: Iterable[Row]) -> str:
    file = io.StringIO()
    table = csv.DictWriter(file, [each.name for each in fields(Row)], lineterminator="\n")
    table.writeheader()
    table.writerows(map(asdict, rows))
    return file.getvalue()
