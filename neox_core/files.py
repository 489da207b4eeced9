"""Files that lie about what they are, and the folder of what can be made again."""

import errno
import fcntl
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


@contextmanager
def replacing(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """A new file, to be written inside the block; it takes the name `path` when the block ends well, and is removed
    otherwise. So whoever reads `path` sees the old file or the new one.

    temporary: where the new file is until then, on the same file system; None: beside `path`, named by this process.
    Raises OSError.
    """
    temporary = temporary or path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def lock(descriptor: int, *, wait: bool = False) -> bool:
    """Lock an open file for this process until it is closed, however this process ends.

    wait: for the process that holds the lock. Returns False where another process holds it; True where the file system
    has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


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
