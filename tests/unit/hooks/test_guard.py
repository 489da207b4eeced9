"""What is refused while a plugin is listed, and that nothing of it outlasts the listing."""

import os
import signal
import threading
import time
from typing import Any

import pytest

from neox_core.hooks import guard
from neox_core.hooks.guard import RefusedError, SlowListingError, in_time, no_lasting_effects

pytestmark = pytest.mark.timeout(0)  # the alarm is what is tested


def hide() -> None:
    while True:
        try:
            while True:
                pass
        except SlowListingError:
            break


@pytest.mark.parametrize("busy", [lambda: time.sleep(1e6), lambda: [None for _ in iter(int, 1)], hide])
def test_what_takes_too_long_is_interrupted_and_named(monkeypatch: pytest.MonkeyPatch, busy: Any) -> None:
    monkeypatch.setattr(guard, "LISTING_S", 0.05)
    with pytest.raises(SlowListingError, match=r"neox-a takes longer than 0\.05 s to be listed"), in_time("neox-a"):
        busy()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_time_that_others_had_the_processor_is_not_counted(crowded_core: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LISTING_S", 0.6)
    began = time.monotonic()
    with in_time("neox-a"):
        end = time.thread_time() + 0.3
        while time.thread_time() < end or time.monotonic() < began + 0.6:
            pass
    with pytest.raises(SlowListingError), in_time("neox-a"):
        hide()


def test_somebody_elses_alarm_still_rings() -> None:
    rang = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(True))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with in_time("neox-a"):
            pass
        signal.pause()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert rang


def test_in_another_thread_nothing_is_interrupted() -> None:
    said = []

    def work() -> None:
        with in_time("neox-a"):
            said.append(signal.getitimer(signal.ITIMER_REAL))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert said == [(0.0, 0.0)]


def test_only_the_thread_that_lists_may_not_start_others() -> None:
    done, go = [], threading.Event()

    def work() -> None:
        go.wait()
        inner = threading.Thread(target=done.append, args=(True,))
        inner.start()
        inner.join()

    other = threading.Thread(target=work)
    other.start()
    calls = threading.Thread.start, os._exit, os.fork
    with pytest.raises(RefusedError, match="neox-a starts a thread"), no_lasting_effects("neox-a"):  # noqa: PT012
        go.set()
        other.join()
        threading.Thread(target=print).start()
    assert done == [True]
    assert (threading.Thread.start, os._exit, os.fork) == calls
