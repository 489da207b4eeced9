"""While a plugin is listed, refuses what would slow down, hang or end the process: listing only creates offers.

The error names the plugin. An error that the plugin catches is raised again when its listing ends.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from neox_core.errors import PluginError

HEAVY = frozenset({"torch", "deepspeed", "triton", "numpy", "transformers", "tokenizers", "jax", "tensorflow"})
LISTING_S = 5.0
"""Limit in seconds. Listing a plugin takes milliseconds, or a second or two on a cold network file system."""


class HeavyImportError(PluginError):
    """A listing module imported a heavy library. Not an ImportError, so `except ImportError` cannot hide it."""


class RefusedError(PluginError):
    """A listing module did something that would end or change the process that lists it."""


class SlowListingError(RefusedError):
    """A listing module, or a rule, did not finish in time."""


@contextmanager
def only_listing(culprit: str) -> Iterator[None]:
    """Refuse inside the block everything that is refused while a plugin is listed."""
    with in_time(culprit), no_lasting_effects(culprit), no_heavy_imports(culprit):
        yield


class _Refuse:
    def __init__(self, culprit: str) -> None:
        self.culprit = culprit
        self.refused: HeavyImportError | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] not in HEAVY:
            return None
        self.refused = HeavyImportError(
            f"{self.culprit} imports {name} while it is being listed",
            hint="import it in the module that Component(target=...) names",
        )
        raise self.refused


@contextmanager
def no_heavy_imports(culprit: str) -> Iterator[None]:
    """Refuse heavy imports inside the block. An error that the block catches is raised again at its end.

    A library that this process has already imported cannot be refused: to check that a plugin is light, start another.
    """
    finder = _Refuse(culprit)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
    if finder.refused is not None:
        raise finder.refused


_FORBIDDEN: tuple[tuple[Any, str, str], ...] = (
    (threading.Thread, "start", "starts a thread"),
    (os, "_exit", "ends the process by os._exit"),
    (os, "fork", "forks the process"),
)


@contextmanager
def no_lasting_effects(culprit: str) -> Iterator[None]:
    """Refuse inside the block, for this thread, what would hang or end the process.

    What happens outside Python (a signal, a crash in C) cannot be refused: see `installed.Watch`.
    """
    refused: list[RefusedError] = []
    mine = threading.get_ident()

    def refuse(call: Callable[..., Any], what: str) -> Callable[..., Any]:
        def instead(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != mine:
                return call(*args, **kwargs)
            refused.append(RefusedError(f"{culprit} {what} while it is being listed", hint=_DO_IT_LATER))
            raise refused[-1]

        return instead

    before = [(place, name, getattr(place, name)) for place, name, _ in _FORBIDDEN]
    for place, name, what in _FORBIDDEN:
        setattr(place, name, refuse(getattr(place, name), what))
    try:
        yield
    finally:
        for place, name, call in before:
            setattr(place, name, call)
    if refused:
        raise refused[0]


_DO_IT_LATER = "do it in the module that Component(target=...) names, which only a process that uses it imports"


def kept_waiting(process: str = "thread-self") -> float:
    """Seconds for which a process was ready to compute and had no processor; 0 where /proc does not say it."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{process}/schedstat").read_bytes().split()[1]) / 1e9
    return 0.0


@contextmanager
def in_time(culprit: str, seconds: float = 0, doing: str = "be listed", hint: str = _DO_IT_LATER) -> Iterator[None]:
    """Interrupt the block when it takes longer than `seconds`, 0: LISTING_S, and again each second if it continues.

    The time that others had the processors is not counted. Only in the main thread; nothing else can be interrupted.
    """
    limit = seconds or LISTING_S
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    began = time.monotonic() - kept_waiting()
    late = SlowListingError(f"{culprit} takes longer than {limit:g} s to {doing}", hint=hint)
    rang = False

    def ring(signum: int, frame: FrameType | None) -> None:
        nonlocal rang
        if not rang and (rest := limit + began + kept_waiting() - time.monotonic()) > 0:
            signal.setitimer(signal.ITIMER_REAL, rest, 1.0)
            return
        rang = True
        raise late

    handler = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, limit, 1.0)
    try:
        yield
    finally:
        with suppress(SlowListingError):  # in case the alarm rings just now
            signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:  # an alarm of other code, which now rings a little later
            signal.setitimer(signal.ITIMER_REAL, left, interval)
    if rang:
        raise late
