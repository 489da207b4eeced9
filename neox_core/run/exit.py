"""How a rank ends: it reports its error, and exits in any case."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from neox_core.errors import NeoxError, PluginError, RankError, in_words, report
from neox_core.files import replacing
from neox_core.hooks.blame import culprit_of
from neox_core.terminal import echo

_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
"""torch's messages about memory of a GPU, and of the host on Linux and elsewhere."""
_LOST_PEER = (
    "connection closed", "connection reset", "broken pipe", "nccl", "timed out", "connection refused", "unreachable",
    "no route to host", "host is down", "socket timeout", "failed to connect", "failed to recv", "read error",
)  # fmt: skip


def for_the_user(error: BaseException, rank: int) -> BaseException:
    """An error that a user can fix as a NeoxError, whatever raised it; any other error unchanged."""
    if isinstance(error, MemoryError | RuntimeError):
        said = " ".join(f"{type(error).__name__}: {error}".split())
        if isinstance(error, MemoryError) or any(words in said for words in _NO_MEMORY):
            hint = "use a smaller train_micro_batch_size_per_gpu, checkpoint-activations: true, or a higher ZeRO stage"
            return RankError(f"rank {rank} is out of memory: {said}", hint=hint)
    return in_words(error) or error


def write_failure(run_dir: Path, rank: int, error: BaseException, *, waits: bool = False) -> None:
    """Write failure.rank<N>.json: rank, message, hint, time, whether it is a user's mistake or only the loss of a peer.

    waits: whether this rank ends because it waited for another one too long.
    """
    mistake = isinstance(error, NeoxError)
    culprit = "" if mistake else culprit_of(error)
    text = str(error.message if isinstance(error, NeoxError) else error)
    report = {
        "rank": rank,
        "exit_code": exit_code_of(error),
        "message": text if mistake else f"{type(error).__name__}: {text}{culprit and f' (in {culprit})'}",
        "hint": error.hint if isinstance(error, NeoxError) else "",
        "time": time.time(),
        "users_mistake": mistake,
        "lost_peer": waits or (not mistake and any(words in text.lower() for words in _LOST_PEER)),
        "stalled": waits,
    }
    with replacing(run_dir / f"failure.rank{rank}.json") as new:
        new.write_text(json.dumps(report), encoding="utf-8")


def exit_code_of(error: BaseException) -> int:
    """The exit code of a process that this error ends."""
    return error.exit_code if isinstance(error, NeoxError) else 1


def explain(error: BaseException, debug: bool) -> None:
    """Write the error to this rank's log, with a traceback unless it is a user's mistake, not a plugin's."""
    if isinstance(error, NeoxError) and not isinstance(error, PluginError) and not debug:
        report(error)
    else:
        echo("".join(traceback.format_exception(error)), err=True, end="")


def leave(code: int) -> NoReturn:
    """Flush and exit at once: threads of gloo or NCCL that still run sometimes abort an ordinary exit."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # for example on a full disk
            stream.flush()
    os._exit(code)


def leave_with_parent() -> None:
    """End this process at once when the launcher is gone, since nothing else could stop it.

    NEOX_AGENT names the process that started it, which may be gone before this one can check; else its parent counts.
    """

    def watch(parent: int) -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    parent = int(os.environ.get("NEOX_AGENT", os.getppid()))
    threading.Thread(target=watch, args=(parent,), name="neox-parent", daemon=True).start()
