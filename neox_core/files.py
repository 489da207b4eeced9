"""Files that lie about what they are, and the folder of what can be made again."""

import errno
import io
import os
import stat
from pathlib import Path


class NotAFileError(OSError):
    """A pipe or a device stands where a file is asked for, or the file is too large to be one of its kind."""


def open_file(path: Path) -> io.BufferedReader:
    """A regular file to read. A pipe or a device is not waited for. Raises OSError: NotAFileError for one of these."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise NotAFileError(errno.EINVAL, "is not a regular file", str(path))
    return io.BufferedReader(io.FileIO(descriptor))


def read_bytes(path: Path, at_most: int) -> bytes:
    """The whole of a regular file, which is not read into memory when it is too large.

    at_most: bytes that such a file can sensibly have. Raises OSError: NotAFileError for what is no such file.
    """
    with open_file(path) as file:
        content = file.read(at_most + 1) or b""  # None of a file of the kernel that has nothing to say yet
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
