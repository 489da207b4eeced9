"""Two ranks over gloo, forked from the process of a check: what must be the same on all ranks is tried on them."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from neox_author.testing.clauses import hold

LIMIT_S = 60.0


def on_two_ranks(act: Callable[[int, Any], Any], clause: str) -> list[Any]:
    """What `act(rank, group)` gives on each of two ranks, through JSON.

    clause: what is broken where a rank fails, or waits for the other for ever
    """
    with tempfile.TemporaryDirectory() as folder:
        ranks = [_forked(rank, act, Path(folder)) for rank in range(2)]
        end = time.monotonic() + LIMIT_S
        left = set(ranks)
        while left and time.monotonic() < end:
            left -= {pid for pid in left if os.waitpid(pid, os.WNOHANG)[0]}
            time.sleep(0.01)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        found = [_read(Path(folder, f"{rank}.json")) for rank in range(2)]
    faults = [each["fault"] for each in found if "fault" in each]
    hold(not faults and not left, f"{clause}; {faults[0] if faults else 'one waits for the other'}")
    return [each["gave"] for each in found]


def _forked(rank: int, act: Callable[[int, Any], Any], folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    said: dict[str, Any] = {"fault": "it ended its process"}
    try:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        limit = timedelta(seconds=LIMIT_S / 3)
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=limit)
        said = {"gave": act(rank, dist.group.WORLD)}
        dist.barrier()
    except BaseException as error:  # noqa: BLE001 a component may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = {"fault": f"rank {rank}: {type(error).__name__}: {error} ({Path(place.filename).name}, {place.lineno})"}
    finally:
        (folder / f"{rank}.json").write_text(json.dumps(said))
        os._exit(0)


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found or {"fault": "a rank ended its process"}
