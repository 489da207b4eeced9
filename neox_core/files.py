"""Opening untrusted files, how many may be open, replacing and locking files, and the user's cache folder."""

import errno
import fcntl
import io
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class NotAFileError(OSError):
    """A path is a pipe or a device instead of a file, or the file is too large for its kind."""


def open_file(path: Path) -> io.BufferedReader:
    """Open a regular file for reading. Raises OSError, NotAFileError for a pipe or a device, without waiting for it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise NotAFileError(errno.EINVAL, "is not a regular file", str(path))
    return io.BufferedReader(io.FileIO(descriptor))


def allow_many_files() -> None:
    """Let this process, and those that it starts, open as many files and sockets as the system allows them."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))


def read_bytes(path: Path, at_most: int) -> bytes:
    """The bytes of a regular file; a file that is too large is not read.

    at_most: largest size in bytes. Raises OSError, NotAFileError for a larger file, a pipe or a device.
    """
    with open_file(path) as file:
        content = file.read(at_most + 1) or b""  # None for a file of the kernel without data yet
    if len(content) > at_most:
        size = f"{at_most >> 20} MiB" if at_most >> 20 else f"{at_most:,} bytes"
        raise NotAFileError(errno.EFBIG, f"is larger than {size}, the limit for such a file", str(path))
    return content


def sha256_of(data: bytes) -> str:
    """The SHA-256 of bytes, in hexadecimal."""
    import hashlib  # 3 ms that a look at a config need not pay

    return hashlib.sha256(data).hexdigest()


@contextmanager
def replacing(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """A new file to write inside the block; it gets the name `path` when the block succeeds, and is removed
    otherwise. So a reader of `path` sees the old file or the new one.

    temporary: the path of the new file until then, on the same file system; None: next to `path`, with a name of this
    process. Raises OSError, NotAFileError where `path` is a pipe or a device: its name would be a file's from then on.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise NotAFileError(errno.EINVAL, "is not a regular file", str(path))
    temporary = temporary or path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def lock(descriptor: int, *, wait: bool = False, required: bool = False) -> bool:
    """Lock an open file for this process, until the file is closed or the process ends.

    wait: whether to wait for a process that holds the lock. Returns False where another process holds it; where the
    file system has no locks, True, or if the lock is `required`, raises OSError.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        if required:
            raise
    return True


def cache_folder() -> Path:
    """The user's cache folder of neox, created if it is missing. Raises OSError where it cannot be created."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:
        raise FileNotFoundError(errno.ENOENT, "there is no home folder") from error
    folder = base / "neox"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
