"""`python uploads.py FOLDER`: for each line of its input, forks a process that saves a checkpoint, and tells its end.

A line is `STEP PART`: the process is killed after that part of the processor's time that an upload takes, whatever else
the machine does; 0 lets it finish. PART `at-7` kills it where it would send its seventh request.
FOLDER: has `written-STEP`, what a save of one rank has before it uploads.
"""

import itertools
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from neox_fsspec.checkpoints import Checkpoints

from neox_core.plan.runfile import ComponentRef, StorePlan
from neox_core.plan.stored.saved import MANIFEST, RUN, STATE, rank_note, sealed

S3 = ComponentRef("store", "s3", "neox-fsspec", "0.1.0", "neox_fsspec.objects:s3")
URL = "s3://bucket/run"


def remote(folder: Path) -> Checkpoints:
    return Checkpoints(StorePlan(URL, S3, str(folder)))


def kill_at(request: int) -> None:
    from aiobotocore.httpsession import AIOHTTPSession

    send, sent = AIOHTTPSession.send, itertools.count(1)

    async def counting(self: Any, *args: Any) -> Any:
        if next(sent) == request:
            os.kill(os.getpid(), signal.SIGKILL)
        return await send(self, *args)

    AIOHTTPSession.send = counting


def save(folder: Path, step: int, part: float) -> None:
    """What `Checkpointer.save` does with a store, of one rank whose files are written. Nothing handles SIGPROF, so it
    ends the process as SIGKILL does.
    """
    seconds = folder / "seconds"
    here = remote(folder / f"host-{os.getpid()}")
    here.own()
    began = time.process_time()
    if part:
        signal.setitimer(signal.ITIMER_PROF, part * float(seconds.read_text()))
    written = here.folder / f".step-{step:08d}.0.tmp"
    shutil.copytree(folder / f"written-{step}", written)
    seals = json.loads(rank_note(written, 0).read_text())["files"]
    here.upload(written, 0)
    here.collect(written, 0)
    files = {file: {"size": size, "sha256": sha256} for file, (size, sha256) in seals.items()}
    for name in (RUN, STATE):
        files[name] = json.loads((folder / "seals.json").read_text())[name]
    manifest = {"format": 1, "step": step, "world_size": 1, "pieces": [], "files": files}
    (written / MANIFEST).write_bytes(sealed(manifest))
    here.publish(written, keep=1)
    if not part:
        seconds.write_text(str(time.process_time() - began))


def main() -> None:
    import s3fs  # noqa: F401 so that no child has to

    folder = Path(sys.argv[1])
    for line in sys.stdin:
        step, word = line.split()
        child = os.fork()
        if child == 0:
            try:
                if word.startswith("at-"):
                    kill_at(int(word[3:]))
                save(folder, int(step), 0.0 if word.startswith("at-") else float(word))
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
