"""Files that lie about what they are, and the folder of what can be made again."""

import errno
import os
import stat
from pathlib import Path


class NotAFileError(OSError):
    """A pipe, a device or a folder stands where a file is asked for, or the file is too large to be one of these."""


def read_bytes(path: Path, at_most: int) -> bytes:
    """The whole of a regular file. A pipe or a device is not waited for, nor a large file read into memory.

    at_most: bytes that such a file can sensibly have. Raises OSError, NotAFileError for what is no such file.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotAFileError(errno.EINVAL, "is not a regular file", str(path))
        content = file.read(at_most + 1)
    if len(content) > at_most:
        size = f"{at_most >> 20} MiB" if at_most >> 20 else f"{at_most:,} bytes"
        raise NotAFileError(errno.EFBIG, f"is larger than {size}, which no such file is", str(path))
    return content


def cache_folder() -> Path:
    """The user's folder for what neox can make again; it is made. Raises OSError where there is no place for it."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:
        raise FileNotFoundError(errno.ENOENT, "there is no home folder") from error
    folder = base / "neox"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
