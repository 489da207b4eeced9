"""How a rank ends: what it reports of an error, and that it does end."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import NoReturn

from neox_core.errors import NeoxError, PluginError
from neox_core.hooks.component import culprit_of

_LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "Timed out waiting")


def write_failure(run_dir: Path, rank: int, error: BaseException) -> None:
    """failure.rank<N>.json: rank, message, hint, when, whether it is a user's mistake, whether only a peer was lost."""
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
        "lost_peer": not mistake and any(words in text for words in _LOST_PEER),
    }
    temporary = run_dir / f".failure.rank{rank}.json"
    temporary.write_text(json.dumps(report), encoding="utf-8")
    temporary.replace(run_dir / f"failure.rank{rank}.json")


def exit_code_of(error: BaseException) -> int:
    return error.exit_code if isinstance(error, NeoxError) else 1


def explain(error: BaseException, debug: bool) -> None:
    """The error in this rank's log: with a traceback unless it is a user's mistake, which a plugin's is not."""
    if isinstance(error, NeoxError) and not isinstance(error, PluginError) and not debug:
        sys.stderr.write(f"error: {error}\n")
    else:
        traceback.print_exception(error)


def leave(code: int) -> NoReturn:
    """Flush and be gone. Threads of gloo or NCCL that are still there abort an ordinary exit now and then."""
    sys.stdout.flush()
    sys.stderr.flush()
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
