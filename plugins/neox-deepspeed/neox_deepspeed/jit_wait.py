"""torch's wait for an extension that another process compiles, with an end: DeepSpeed's ops are such extensions."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from neox_core.errors import ConfigError
from neox_core.terminal import echo

if TYPE_CHECKING:
    from torch.utils.file_baton import FileBaton

LONGEST_S = 1800.0
"""A compilation takes a minute or two, on a busy machine ten."""
SAID_AFTER_S = 10.0


def wait(baton: "FileBaton") -> None:
    """In place of `FileBaton.wait`. Raises ConfigError for a lock that a killed compilation has left."""
    lock, began, said = Path(baton.lock_file_path), time.monotonic(), False
    while (age := _age(lock)) is not None:
        if age > LONGEST_S:
            raise ConfigError(
                f"{lock}: its compilation began {age / 60:,.0f} minutes ago and has not ended: it was probably killed",
                hint="delete this file, and start again",
            )
        if not said and time.monotonic() - began > SAID_AFTER_S:
            echo(f"waiting for another process to compile an op; if there is none, delete {lock}", err=True)
            said = True
        time.sleep(baton.wait_seconds)


def _age(lock: Path) -> float | None:
    try:
        return time.time() - lock.stat().st_mtime
    except FileNotFoundError:
        return None
