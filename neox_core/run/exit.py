"""How a rank ends: what it reports of an error, and that it does end."""

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
from neox_core.hooks.component import culprit_of
from neox_core.terminal import echo

_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
"""As torch says it of a GPU, and of the host under Linux and elsewhere."""
_LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "Timed out waiting")


def for_the_user(error: BaseException, rank: int) -> BaseException:
    """What can be mended in words for the one who can, whatever raised it; any other error as it is."""
    if isinstance(error, MemoryError | RuntimeError):
        said = " ".join(f"{type(error).__name__}: {error}".split())
        if isinstance(error, MemoryError) or any(words in said for words in _NO_MEMORY):
            hint = "a smaller train_micro_batch_size_per_gpu, checkpoint-activations: true, or a higher ZeRO stage"
            return RankError(f"rank {rank} is out of memory: {said}", hint=hint)
    return in_words(error) or error


def write_failure(run_dir: Path, rank: int, error: BaseException, *, waits: bool = False) -> None:
    """failure.rank<N>.json: rank, message, hint, when, whether it is a user's mistake, whether only a peer was lost.

    waits: this rank ends since it has waited for another one too long.
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
        "lost_peer": waits or (not mistake and any(words in text for words in _LOST_PEER)),
        "stalled": waits,
    }
    with replacing(run_dir / f"failure.rank{rank}.json") as new:
        new.write_text(json.dumps(report), encoding="utf-8")


def exit_code_of(error: BaseException) -> int:
    return error.exit_code if isinstance(error, NeoxError) else 1


def explain(error: BaseException, debug: bool) -> None:
    """The error in this rank's log: with a traceback unless it is a user's mistake, which a plugin's is not."""
    if isinstance(error, NeoxError) and not isinstance(error, PluginError) and not debug:
        report(error)
    else:
        echo("".join(traceback.format_exception(error)), err=True, end="")


def leave(code: int) -> NoReturn:
    """Flush and be gone. Threads of gloo or NCCL that are still there abort an ordinary exit now and then."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # such as of a full disk
            stream.flush()
    os._exit(code)


def leave_with_parent() -> None:
    """End this process at once when the launcher is gone: nobody is left who could stop it.

    NEOX_AGENT says who started it, since that one may be gone before this process can look; else its parent counts.
    """

    def watch(parent: int) -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    parent = int(os.environ.get("NEOX_AGENT", os.getppid()))
    threading.Thread(target=watch, args=(parent,), name="neox-parent", daemon=True).start()
