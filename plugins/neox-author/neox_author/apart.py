"""Tries things of plugins one by one in another process, so that a crash or a hang ends that process only.

The other process is `python -m MODULE SECONDS`, whose main function calls `serve`. It reads the items as JSON from
stdin. It writes a JSON line as soon as it has started, for each thing that it tells of an item, and when an item is
done. What plugins print goes to stderr, of which the end is kept for the message about a crash.
"""

import faulthandler
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from tempfile import TemporaryFile
from threading import Thread
from typing import IO, Any

from attrs import frozen

from neox_core.errors import PluginError
from neox_core.interpreter import python

LAST_BYTES = 1 << 16
"""How much is kept of what a process says."""
SPARE_S = 60.0
"""How much longer than all items together a process may live: it starts, and ends itself if an item takes too long."""

Tell = Callable[..., None]


@frozen
class Outcome:
    """What came of an item: what was told of it, and what went wrong, "" where nothing did."""

    told: tuple[list[Any], ...]
    fault: str


def try_apart(
    module: str, items: Sequence[Any], seconds: float, doing: str, env: Mapping[str, str] | None = None
) -> Iterator[Outcome]:
    """The outcome of each item, in their order. After an item that ends its process, a new one tries the rest.

    module: the one to run
    seconds: the longest time for one item
    doing: what is done to an item, for messages: "import"
    env: the environment; None: that of this process
    """
    left = list(items)
    while left:
        code, lines, said = _run(python(module, str(seconds)), left, seconds * len(left) + SPARE_S, env)
        if not lines:
            raise PluginError(f"cannot start the process to {doing} what plugins offer: {' '.join(said[-1:])}")
        told: list[list[Any]] = []
        item = 0
        for number, what, *rest in lines[1:]:
            if number == item and what == "told":
                told.append(rest)
            elif number == item and left:
                yield Outcome(tuple(told), str(rest[0]))
                told, item = [], item + 1
                left.pop(0)
        if left:
            yield Outcome(tuple(told), _fault(code, said, seconds, doing))
            left.pop(0)


def serve(attempt: Callable[[Any, Tell], str]) -> None:
    """The main function of the other process.

    attempt: takes an item and a function that tells the first process something of it; returns what went wrong
    """
    items, seconds = json.loads(sys.stdin.read()), float(sys.argv[1])
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(*said: Any) -> None:
        results.write(json.dumps(said) + "\n")
        results.flush()

    send(0, "started")
    for number, item in enumerate(items):
        faulthandler.dump_traceback_later(seconds, exit=True)
        send(number, "done", attempt(item, partial(send, number, "told")))
    os._exit(0)  # with any threads that plugins left


def _run(
    argv: Sequence[str], items: Sequence[Any], seconds: float, env: Mapping[str, str] | None
) -> tuple[int, list[list[Any]], list[str]]:
    """The exit code of a process, what it sent, and the last lines that it said."""
    with TemporaryFile() as given, TemporaryFile() as results:  # not pipes: what plugins start may keep these open
        given.write(json.dumps(list(items)).encode())
        given.seek(0)
        process = subprocess.Popen(
            argv, stdin=given, stdout=results, stderr=subprocess.PIPE, env=env, start_new_session=True
        )
        said = bytearray()
        reader = Thread(target=_keep_end, args=(process.stderr, said), daemon=True)
        reader.start()
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = -signal.SIGALRM
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and what plugins started
            process.wait()
            reader.join(5)
        results.seek(0)
        return code, list(_lines(results.read())), said.decode("utf-8", "replace").strip().splitlines()


def _keep_end(stream: IO[bytes], said: bytearray) -> None:
    with stream:
        while part := stream.read1(LAST_BYTES):  # type: ignore[attr-defined]  # a pipe of Popen is buffered
            said += part
            del said[:-LAST_BYTES]


def _lines(results: bytes) -> Iterator[list[Any]]:
    """What `serve` sent; a plugin may have written other lines."""
    for line in results.splitlines():
        with suppress(ValueError, RecursionError):
            said = json.loads(line)
            if isinstance(said, list) and (said[1:] == ["started"] or (said[1:2] in (["told"], ["done"]) and said[2:])):
                yield said


def _fault(code: int, said: list[str], seconds: float, doing: str) -> str:
    late = next((place for place, line in enumerate(said) if line.startswith("Timeout (")), None)  # of faulthandler
    if late is not None or code == -signal.SIGALRM:
        places = [line.strip() for line in said[late:] if line.startswith("  File ")] if late is not None else []
        return f"takes longer than {seconds:g} s to {doing}{': ' + places[0] if places else ''}"
    ended = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"ends the process that {doing}s it ({ended}){': ' + said[-1] if said else ''}"
