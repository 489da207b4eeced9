"""`python -m neox_core` is `neox`, whose console script calls `main`."""

import os
import sys

LITTLE = 64 << 20
"""Address space in bytes in which an import may fail with any error."""


def main() -> None:
    """Run the command line. Where memory is too small even for its imports, one error says so."""
    try:
        from neox_core.cli.main import main as run
    except (MemoryError, SystemError, ImportError, OSError) as error:  # as Python says it in different imports
        if not isinstance(error, MemoryError) and not _has_little_memory():
            raise
        os.write(2, b"error: memory ran out\n  raise the limit (`ulimit -v`, a container's, a job's)\n")
        os._exit(2)
    except KeyboardInterrupt:
        os._exit(130)
    run()


def _has_little_memory() -> bool:
    try:
        from resource import RLIMIT_AS, getrlimit
    except (MemoryError, SystemError, ImportError, OSError):
        return True
    return 0 <= getrlimit(RLIMIT_AS)[0] < LITTLE


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the current folder, which the console script does not look into either
    main()
