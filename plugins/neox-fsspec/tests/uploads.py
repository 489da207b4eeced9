"""`python uploads.py FOLDER`: for each line of its input, forks a process that saves a checkpoint, and tells its end.

A line is `STEP PART`: the process is killed after that part of the time that an upload takes; 0 lets it finish.
FOLDER: has `written-STEP`, what a save of one rank has before it uploads.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from neox_core.plan.runfile import ComponentRef, StorePlan
from neox_core.plan.stored.remote import Remote, rank_note
from neox_core.plan.stored.saved import MANIFEST, RUN, STATE, sealed

S3 = ComponentRef("store", "s3", "neox-fsspec", "0.1.0", "neox_fsspec.objects:s3")
URL = "s3://bucket/run"


def remote(folder: Path) -> Remote:
    return Remote(StorePlan(URL, S3, str(folder)))


def save(folder: Path, step: int, begins: int) -> None:
    """What `Checkpointer.save` does with a store, of one rank whose files are written."""
    here = remote(folder / f"host-{os.getpid()}")
    here.own()
    os.write(begins, b".")
    written = here.folder / f".step-{step:08d}.0.tmp"
    shutil.copytree(folder / f"written-{step}", written)
    seals = json.loads(rank_note(written, 0).read_text())["files"]
    here.upload(written, 0)
    here.collect(written, 0)
    files = {file: {"size": size, "sha256": sha256} for file, (size, sha256) in seals.items()}
    for name in (RUN, STATE):
        files[name] = json.loads((folder / "seals.json").read_text())[name]
    (written / MANIFEST).write_bytes(sealed({"format": 1, "step": step, "files": files}))
    here.publish(written, keep=1)


def main() -> None:
    import s3fs  # noqa: F401 so that no child has to

    folder, longest = Path(sys.argv[1]), 0.0
    for line in sys.stdin:
        step, part = line.split()
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                save(folder, int(step), writes)
                os._exit(0)
            finally:
                os._exit(1)
        os.close(writes)
        os.read(reads, 1)
        os.close(reads)
        began = time.monotonic()
        if float(part):
            time.sleep(float(part) * longest)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        longest = longest if float(part) else time.monotonic() - began
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
