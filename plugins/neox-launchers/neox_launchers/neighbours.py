"""One host of a run hears of the others through the store, and tells them when it fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from attrs import define, field
from torch.distributed import DistError, Store

from neox_core.interpreter import start_thread
from neox_launchers.failure import FAILED, STOP, say_to_first

LOOK_S = 0.2
BEAT_S = 0.5
"""Between two signs of life of a host; of more than 1,000 hosts, so that they make BEATS a second together."""
BEATS = 2_000
CLOSING_S = 5.0
"""After the first host has closed the store: what else is known may still arrive."""


@define
class Neighbours:
    """Beats, failures and requests to stop, by the store of the first host.

    * meeting: the store, once the hosts have met.
    * failed, over: whether a rank of this host has failed; whether all of them have ended well, as those of the first
      host have, which is then the first to leave.
    * ask, end: ask the ranks of this host to stop; end them, since another host has failed.
    * asked, lost, order: the user's request has arrived; hosts that are silent, by number, and for how many seconds;
      the place of this host among those that failed.

    One thread talks to the store and another one decides: a call to a host without power does not return. Only this
    process's own monotonic clock counts, so the clocks of hosts may differ.
    """

    meeting: Callable[[], Store | None]
    node: int
    hosts: list[str]
    run_dir: Path
    timeout_s: float
    failed: Callable[[], bool]
    over: Callable[[], bool]
    ask: Callable[[], None]
    end: Callable[[], None]
    lost: dict[int, float] = field(factory=dict)
    order: int | None = None
    told: bool = False
    broken: str = ""
    done: threading.Event = field(factory=threading.Event)
    _wake: threading.Event = field(factory=threading.Event)
    _said: threading.Event = field(factory=threading.Event)
    _beats: dict[int, int] = field(factory=dict)
    _heard: dict[int, float] = field(factory=dict)
    _asked: bool = False

    def start(self) -> None:
        start_thread(self._follow, name="neox-neighbours")

    def finish(self) -> None:
        """The ranks of this host have ended; where one has failed, the others are told before this process ends."""
        if self.failed() and not self.told and not self.broken:
            self._wake.set()
            self._said.wait(CLOSING_S)
        self.done.set()
        self._wake.set()

    def _follow(self) -> None:
        while (store := self.meeting()) is None:
            if self.done.wait(LOOK_S):
                return
        now = time.monotonic()
        self._heard = dict.fromkeys(range(1, len(self.hosts)) if self.node == 0 else (0,), now)
        start_thread(self._talk, store, name="neox-talk")
        self._decide()

    def _talk(self, store: Store) -> None:
        while not self.done.is_set():
            try:
                self._round(store)
            except (DistError, RuntimeError) as error:
                self.broken = str(error).splitlines()[0]
                return
            self._wake.wait(max(BEAT_S, len(self.hosts) / BEATS))
            self._wake.clear()

    def _round(self, store: Store) -> None:
        store.add(f"beat/{self.node}", 1)
        if self.order is None and (self.lost or self.failed()):
            self.order = store.add("failures", 1)
            self._said.set()
            say_to_first("failed", self.hosts[self.node])
        elif self.order is None and store.add("failures", 0):
            self.told = True
        if self.node == 0:
            self._read_request(store)
            others = list(self._heard)
            counts = store.multi_get([f"beat/{each}" for each in others]) if others else []
            for each, count in zip(others, map(int, counts), strict=True):
                if self._beats.get(each) != count:
                    self._beats[each], self._heard[each] = count, time.monotonic()
        else:
            self._heard[0] = time.monotonic()
            self._asked |= store.check(["asked"])

    def _read_request(self, store: Store) -> None:
        """`stop` in the folder of the run, on behalf of all hosts."""
        try:
            request = (self.run_dir / STOP).read_text(encoding="utf-8")
        except OSError:
            return
        if not self._asked:
            store.set("asked", "")
            self._asked = True
        if request == FAILED and not self.told:
            store.add("failures", 1)
            self.told = True

    def _decide(self) -> None:
        passed_on, closed_at, before = False, 0.0, time.monotonic()
        while not self.done.wait(LOOK_S):
            now = time.monotonic()
            if now - before > 10 * LOOK_S:  # this process was stopped: nobody else was silent
                self._heard = {each: at + now - before for each, at in self._heard.items()}
            before = now
            silent = {each: now - at for each, at in self._heard.items() if now - at > self.timeout_s}
            if self.broken and not closed_at:
                closed_at = now
            if self.broken and now - closed_at > CLOSING_S and not self.over():
                silent = {0: now - self._heard.get(0, now)}
            if silent:
                self.lost = silent
            if self._asked and not passed_on:
                passed_on = True
                self.ask()
            if silent or self.told:
                self.end()
                return
