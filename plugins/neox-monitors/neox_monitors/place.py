"""Where a monitor cannot write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neox_core.errors import ConfigError


@contextmanager
def written_to(place: Path, way_out: str) -> Iterator[None]:
    """A file or folder that cannot be written to is the user's to mend, not the author's: ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{place}: cannot be written to: {error.strerror or error}", hint=way_out) from error
