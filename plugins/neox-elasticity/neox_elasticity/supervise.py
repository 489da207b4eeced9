"""Runs `neox train` again and again, each time on the slots that are there, until it is done. Light.

The work of `neox elastic`, and of `neox train` with max-restarts. It knows no launcher: it asks `neox train` to stop by
a signal, as a user would, and reads its exit code and failure.json. `neox train` reads a hostfile that this process
writes, so that it never sees one that is half written.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from attrs import define, field

from neox_core.errors import NeoxError, RankError
from neox_core.files import replacing
from neox_core.interpreter import python
from neox_core.terminal import echo
from neox_elasticity.members import Look, Sizes, Slot, Team, WholeHosts, change, lost_slots, restarts_help
from neox_elasticity.record import Record, read_failure
from neox_elasticity.starts import STARTED

STOPPED = 130
POLL_S = 0.2
SETTLE_S = 1.0
"""How long a hostfile has to stay as it is before it counts, since an editor or a script may write it in pieces."""
HOSTS = "elastic.hosts"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@define(eq=False)
class Elastic:
    """A run that changes its ranks.

    train: what follows `neox train`. shape: which teams fit. least_s: seconds that a number of ranks is kept before
    there are more. most: how often it starts again after failures; None: as long as a team fits. name: of the command
    that this is. resume: how the first start resumes, as `--resume` says it; None: as without it.
    """

    train: Sequence[str]
    look: Look
    shape: Sizes | WholeHosts
    least_s: float
    record: Record
    most: int | None = None
    name: str = "neox elastic"
    resume: str | None = "auto"
    _lost: dict[Slot, None] = field(factory=dict, init=False)
    _seen: object = field(default=None, init=False)
    _listed: tuple[Slot, ...] = field(default=(), init=False)
    _asked: list[int] = field(factory=list, init=False)
    _newer: tuple[object, float] | None = field(default=None, init=False)
    _told: str = field(default="", init=False)
    _restarts: int = field(default=0, init=False)

    def run(self) -> int:
        """Train until the run is done. Returns the exit code of the last `neox train`."""
        spare: str | None = None
        with self._signals():
            while True:
                team = self._team()
                if self._asked:
                    return STOPPED
                if spare is None and (spare := self.shape.spare_in_words(self._listed)):
                    echo(f"{self.name}: max-restarts {spare}", err=True)
                self.record.note("start", world_size=len(team), slots=team.include(), restarts=self._restarts)
                code, why = self._once(team)
                if code == 0 or self._asked:
                    self.record.note("end")
                    return code if code >= 0 else STOPPED  # by the signal, before it was ready to take one
                if not self._fails(code, team) and not why:  # the signal of a change may end it while it starts
                    self.record.note("end")
                    return code
                self.record.interrupted()

    def _fails(self, code: int, team: Team) -> bool:
        """Keep what has failed. Returns whether the run is to start again for it."""
        failure = read_failure(self.record.folder) if code == RankError.exit_code else {}
        lost = lost_slots(failure, team)
        again = bool(lost) or (self.most is not None and code == RankError.exit_code and restarts_help(failure))
        if again and self.most is not None and self._restarts >= self.most:
            echo(f"{self.name}: started again {self._restarts} times, as max-restarts allows", err=True)
            return False
        for host, slot in lost:
            self._lost.pop((host, slot), None)
            self._lost[host, slot] = None
            self.record.note("lost", host=host, slot=slot)
            echo(f"{self.name}: slot {slot} of {host} is lost; the run continues without it", err=True)
        if again:
            self._restarts += 1
            self.record.note("restart", number=self._restarts, why=str(failure.get("message", "")))
            of = "" if self.most is None else f" of {self.most}"
            echo(f"{self.name}: restart {self._restarts}{of}", err=True)
        return again

    def _once(self, team: Team) -> tuple[int, str]:
        """Run `neox train` on a team. Returns its exit code, and why it was asked to end for another team, or ""."""
        hosts = self._write_hosts()
        sets = (f"hostfile={hosts}", f"include={team.include()}")
        told = (word for each in sets for word in ("--set", each))
        resume, self.resume = self.resume, "auto"
        words = python("neox_core", "train", *self.train, *told, *(("--resume", resume) if resume else ()))
        before, env = self._planned(), {**os.environ, STARTED: "1"}
        # in a session of its own: a Ctrl-C in the terminal reaches this process only
        process = subprocess.Popen(words, env=env, start_new_session=True)
        began, why, passed_on = time.monotonic(), "", 0
        try:
            while process.poll() is None:
                time.sleep(POLL_S)
                for signum in self._asked[passed_on:]:
                    process.send_signal(signum)
                passed_on = len(self._asked)
                self._report()
                if not why and not self._asked and self._planned() != before:
                    why = self._changed(team, time.monotonic() - began)
                    if why:
                        self.record.note(why)
                        echo(f"{self.name}: slots have {why}; the run continues on others", err=True)
                        process.terminate()
        finally:
            if process.poll() is None:
                process.terminate()
        self._report()
        return process.returncode, why

    def _team(self) -> Team:
        while self._read() and not self._asked:
            time.sleep(POLL_S)
        team = self._wanted()
        if team is None:
            listed, left = len(self._listed), len(self._there())
            lost = f", of which {listed - left} are lost" if listed > left else ""
            raise RankError(
                f"the hostfile has {listed} slots{lost}, and {self.shape.needs()}",
                hint="write the hostfile with the slots that are there, and start it again: it continues",
            )
        return team

    def _there(self) -> tuple[Slot, ...]:
        return self.shape.there(self._listed, self._lost)

    def _wanted(self) -> Team | None:
        return self.shape.pick(self._listed, self._lost)

    def _changed(self, team: Team, ran_s: float) -> str:
        self._read()
        return change(team, self._wanted(), self._there(), ran_s, self.least_s)

    def _read(self) -> bool:
        """Look at the hostfile. When it was written, the slots that were lost are there again if it names them.

        Returns whether it has just been written, and may change again.
        """
        try:
            seen, slots = self.look()
        except NeoxError as error:
            if self._seen is None:
                raise
            return self._faulty(error)
        if seen != self._seen:
            if self._seen is not None and not self._settled(seen):
                return True
            self._seen, self._listed = seen, slots
            self._lost.clear()
        self._newer, self._told = None, ""
        return False

    def _settled(self, seen: object) -> bool:
        now = time.monotonic()
        if self._newer is None or self._newer[0] != seen:
            self._newer = seen, now
        return now - self._newer[1] >= SETTLE_S

    def _faulty(self, error: NeoxError) -> bool:
        """A hostfile with faults does not count. Reports them once, unless they are gone soon."""
        fault = str(error)
        if not self._settled(fault):
            return True
        if fault != self._told:
            self._told = fault
            echo(f"{self.name}: the hostfile has faults, and the run keeps its slots: {fault}", err=True)
        return False

    def _planned(self) -> int:
        """When `neox train` has written its plan, which is when it begins to take signals; 0: never."""
        try:
            return (self.record.folder / "run.json").stat().st_mtime_ns
        except OSError:
            return 0

    def _write_hosts(self) -> Path:
        """The hostfile of `neox train`: what was read last."""
        slots: dict[str, int] = {}
        for host, slot in self._listed:
            slots[host] = max(slot + 1, slots.get(host, 0))
        file = self.record.folder / HOSTS
        with replacing(file) as temporary:
            temporary.write_text("".join(f"{host} slots={count}\n" for host, count in slots.items()), encoding="utf-8")
        return file

    def _report(self) -> None:
        lost_s = self.record.lost_s()
        if lost_s is not None:
            self.record.note("recovered", lost_s=round(lost_s, 3))
            echo(f"{self.name}: the change has cost {lost_s:.1f} s", err=True)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Keep the signals that ask this process to stop, for `neox train` to get them."""

        def keep(signum: int, frame: FrameType | None) -> None:
            self._asked.append(signum)

        ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()  # by nohup
        before = {signum: signal.signal(signum, keep) for signum in SIGNALS if signum not in ignored}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)
