"""Ranks over gloo, forked from the process of a check: what must be the same on all ranks is tried on them."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from neox_author.testing.clauses import heard, hold, not_applicable
from neox_core.files import replacing

LIMIT_S = 60.0
"""For ranks that compute all the time. They get it again as long as they have computed in it, beside other work of the
machine, and have not computed so long in all.
"""
IDLE = 0.01
"""The part of the time below which a rank waits and does not compute."""
STACK_S = 0.5
"""How long ranks that are about to be killed may take to write where they stand."""
_FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')


def on_two_ranks(act: Callable[[int, Any], Any], clause: str) -> list[Any]:
    """What `act(rank, group)` gives on each of two ranks, through JSON.

    clause: what is broken where a rank fails, or waits for the other for ever
    """
    return on_ranks(2, act, clause)


def on_ranks(size: int, act: Callable[[int, Any], Any], clause: str) -> list[Any]:
    """The same on so many ranks. A clause that a rank finds broken is raised as its own.

    Where no rank says anything within the limit they are tried once more: a process that is forked beside threads can
    inherit a lock that nobody frees. Ranks that wait for each other are told so by gloo before that.
    """
    found, left = _tried(size, act)
    if left and all("silent" in each for each in found):
        found, left = _tried(size, act)
    for each in found:
        if "broken" in each:
            raise AssertionError(each["broken"])
    faults = [each["fault"] for each in found if "fault" in each]
    hold(not faults and not left, f"{clause}; {faults[0] if faults else 'one waits for the other'}")
    for told, why in found[0]["heard"]:
        not_applicable(told, why)
    return [each["gave"] for each in found]


def import_for_ranks(libraries: Sequence[str]) -> None:
    """Import them, where they are installed, once and not in each rank, which is a fork of this process.

    torch._dynamo, too, which an optimizer of torch imports for more than a second when it is made.
    """
    for library in (*libraries, "torch._dynamo"):
        with suppress(ImportError):
            import_module(library)


def _tried(size: int, act: Callable[[int, Any], Any]) -> tuple[list[dict[str, Any]], set[int]]:
    """What each rank has written, and the processes that had to be killed."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [_forked(rank, size, act, Path(folder)) for rank in range(size)]
        end, failed, spent = time.monotonic() + LIMIT_S, False, 0.0
        left = set(ranks)
        while left:
            left -= {pid for pid in left if os.waitpid(pid, os.WNOHANG)[0]}
            time.sleep(0.01)
            if not failed and any("fault" in _read(Path(folder, f"{rank}.json")) for rank in range(size)):
                failed, end = True, min(end, time.monotonic() + 1.0)  # others may wait for a rank that has failed
            if time.monotonic() >= end:
                before, spent = spent, max(map(_computed_s, left), default=0.0)
                if failed or spent >= LIMIT_S or spent - before < IDLE * LIMIT_S:
                    break
                end += LIMIT_S
        for pid in left:
            os.kill(pid, signal.SIGUSR1)  # where it stands
        time.sleep(STACK_S if left else 0)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return [
            _read(Path(folder, f"{rank}.json")) or _silent(Path(folder, f"{rank}.stack")) for rank in range(size)
        ], left


def _computed_s(pid: int) -> float:
    """Of the processor's time, in seconds; 0 where the system does not tell."""
    file = Path(f"/proc/{pid}/stat")
    fields = file.read_text().rpartition(")")[2].split() if file.exists() else []
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _forked(rank: int, size: int, act: Callable[[int, Any], Any], folder: Path) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    said: dict[str, Any] = {"fault": "it ended its process"}
    told: list[tuple[str, str]] = []
    stack = (folder / f"{rank}.stack").open("w")
    try:
        # dump_traceback_later would wait for ever for its thread, where this was forked beside one that waits
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        limit = timedelta(seconds=LIMIT_S / 3)
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0"}
        init = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=init, rank=rank, world_size=size, timeout=limit)
        with heard(lambda clause, why: told.append((clause, why))):
            said = {"gave": act(rank, dist.group.WORLD), "heard": told}
        dist.barrier()
    except AssertionError as error:
        said = {"fault": str(error), "broken": str(error)}
    except BaseException as error:  # noqa: BLE001 a component may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = {"fault": f"rank {rank}: {type(error).__name__}: {error} ({Path(place.filename).name}, {place.lineno})"}
    finally:
        with replacing(folder / f"{rank}.json") as written:
            written.write_text(json.dumps(said))
        os._exit(0)


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def _silent(stack: Path) -> dict[str, Any]:
    """Of a rank that wrote nothing: that its process ended, or where it stood just before it was killed."""
    frame = _FRAME.search(stack.read_text()) if stack.exists() else None
    if frame is None:
        return {"fault": "a rank ended its process", "silent": True}
    place = f"{frame[3]} ({Path(frame[1]).name}, {frame[2]})"
    return {"fault": f"a rank did not end in time: it stood in {place}", "silent": True}
