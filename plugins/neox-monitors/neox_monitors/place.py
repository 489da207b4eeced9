"""The folder of a monitor, and the error where it cannot write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from neox_core.errors import ConfigError

if TYPE_CHECKING:
    from neox_core.contracts.host import RunInfo
    from neox_monitors.settings import CsvBlock, TensorBoardBlock


def folder_of(run: RunInfo, block: CsvBlock | TensorBoardBlock) -> Path:
    """<output_path>/<job_name>; output_path is the folder of the run where none is written."""
    around = run.run_dir if block.output_path is None else Path(block.output_path)
    return around / block.job_name


def require_file(path: Path, way_out: str) -> None:
    """Raise ConfigError where `path` is a folder, or a pipe or a device, which would be waited for."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: is not a file, and in its place the run writes one", hint=way_out)


@contextmanager
def written_to(place: Path, way_out: str) -> Iterator[None]:
    """Raise ConfigError for a file or folder that cannot be written: a user can fix it."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{place}: cannot be written to: {error.strerror or error}", hint=way_out) from error
