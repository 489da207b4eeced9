"""Libraries in the cache of torch's compiler whose build was killed: torch takes a file that is there for a whole one,
so every later run on this host would fail to load it.
"""

from __future__ import annotations

import fcntl
import shutil
from contextlib import suppress
from pathlib import Path

BUILDS = "_CxxBuild"
"""What torch adds to a library's name for the folder in which its compiler works, and which it removes at the end."""


def remove_half_built() -> None:
    """In the cache of this user; to be called before layers are compiled."""
    with suppress(ImportError):
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        remove_in(Path(cache_dir()))


def remove_in(cache: Path) -> None:
    """What another process builds at this moment stays: it has torch's lock of the library."""
    for build in cache.glob(f"*/*{BUILDS}"):
        library = build.name.removesuffix(BUILDS)
        with suppress(OSError), (cache / "locks" / f"{library.partition('.')[0]}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for ending in ("so", "o"):
                build.with_name(f"{library}.{ending}").unlink(missing_ok=True)
            shutil.rmtree(build)
