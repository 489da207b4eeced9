"""What a function for Python was given: an error for what it does not take, before it reaches other code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from neox_core.errors import UsageError


def path_of(value: Any, what: str) -> Path:
    """The path that an argument names. Raises UsageError for anything but a text or a path, and for an empty text.

    what: the argument, for the error
    """
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise UsageError(f"{what} is a text or a Path, not {value!r:.80}")
    return Path(value)
