"""What pdsh, mpirun or srun and the agents say, and how long they may take. Light: runs on the host."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import IO

from attrs import define, field

from neox_core.terminal import echo
from neox_launchers.agents import some
from neox_launchers.failure import FAILED, MARK, STOP, read_reports, write_whole
from neox_launchers.settings import LauncherSettings

_OF_A_HOST = re.compile(
    r"(?:pdsh|neox)@[^:]*: (?P<pdsh>[^:]+): "
    r"|srun: error: (?P<task>\S+): tasks? "
    r"|srun: error: Node failure on (?P<node>\S+)"
    r"|mpirun noticed that process rank \d+ with PID \d+ on node (?P<mpi>\S+) exited "
    r"|(?:Connection to|Timeout, server) (?P<ssh>\S+) (?:closed by remote host|not responding)"
    r"|ssh: connect to host (?P<start>\S+) port "
)
"""What the programs themselves say of a host: that it cannot be reached, or that its agent did not end well."""
OF_SSH = ("ssh", "start")
_NOISE = re.compile(
    r"Warning: Permanently added |\[[WE]\d+ |Exception raised from |frame #\d+: |<omitting python frames>|\s*$"
)
"""Messages that are not errors: of ssh about a new host, of torch about a name or a connection."""
_OF_AN_AGENT = re.compile(rf"{MARK} (?P<what>\w+) ?(?P<words>.*)")
KEPT_LINES = 10
TELL_S = 10.0
REPORTS_S = 2.0
LEFT_S = 10.0
"""For the program to end when all hosts have reported, or are lost. Open MPI waits for the agent of a lost host."""


@define
class Listener:
    """Keeps what was said. hosts: names, in the order of their numbers. program: that starts the agents.

    lost: the first host of which the program said that it failed. unreachable: the first whose ssh has ended after the
    hosts had met, which not every program needs any more.
    """

    run_dir: Path
    hosts: list[str]
    settings: LauncherSettings
    program: str
    lost: str | None = None
    unreachable: str | None = None
    said: list[str] = field(factory=list)
    asked_at: float | None = None
    failed_at: float | None = None
    met: bool = False
    _said_by_ssh: str = ""
    _here: set[int] = field(factory=set)
    _waiting: str = ""
    _shown: str = ""
    _began: float = field(factory=time.monotonic)
    _ended_at: float | None = None
    _looked: float = field(factory=time.monotonic)

    def read(self, stderr: IO[str], log: IO[str]) -> None:
        """All lines to their end. The other hosts are stopped as soon as one has failed."""
        for line in stderr:
            log.write(line)
            log.flush()
            agent = _OF_AN_AGENT.fullmatch(line.strip())
            if agent:
                self._hear(agent["what"], agent["words"].strip())
                continue
            match = _OF_A_HOST.match(line)
            if self.lost is None and not _NOISE.match(line):
                self.said = [*self.said, line.strip()][-KEPT_LINES:]
            if match and self.met and match.lastgroup in OF_SSH:
                if self.unreachable is None:
                    self.unreachable, self._said_by_ssh = match[match.lastgroup], line.strip()
            elif match and self.lost is None:
                self.lost = match[match.lastgroup or 0]
                write_whole(self.run_dir / STOP, FAILED)
                self.failed_at = self.failed_at or time.monotonic()

    def reasons(self) -> list[str]:
        """What was said before the first host failed, without what the program adds."""
        return [each.removeprefix("error: ") for each in self.said if not _OF_A_HOST.match(each)] or self.said

    def of(self, host: str) -> str:
        """What was said of a host."""
        return "; ".join(each for each in dict.fromkeys((self._said_by_ssh, *self.said)) if host in each)

    def missing(self) -> list[str]:
        """Hosts whose agents have not started."""
        return [name for node, name in enumerate(self.hosts) if node not in self._here]

    def _hear(self, what: str, words: str) -> None:
        if what == "here":
            self._here.add(int(words))
        elif what == "waiting":
            self._waiting = words
        elif what == "met":
            self.met = True
        elif what == "failed":
            self.failed_at = self.failed_at or time.monotonic()

    def look(self, now: float) -> str:
        """Why the command is to be ended, "" if it may continue. Shows which hosts are awaited."""
        limits = self.settings
        if now > self._looked + REPORTS_S:
            self._looked = now
            reports = read_reports(self.run_dir)
            over = {*reports, *(lost for report in reports.values() for lost in report.lost)}
            if self._ended_at is None and len(over) == len(self.hosts):
                self._ended_at = now
        if not self.met and self.failed_at is None and now > self._began + TELL_S:
            waiting = self._waiting or f"{some(self.missing())} of {len(self.hosts)} hosts"
            if waiting != self._shown and (self._waiting or self.missing()):
                self._shown = waiting
                echo(f"waiting for {waiting}", err=True)
        since = [each for each in (self.failed_at, None if self.met else self.asked_at) if each]
        if since and now > min(since) + limits.end_timeout:
            return f"{self.program} did not end within {limits.end_timeout} s"
        if self._ended_at is not None and now > self._ended_at + LEFT_S:
            return f"{self.program} did not end within {LEFT_S:.0f} s of the hosts"
        if not self.met and now > self._began + limits.meet_timeout + limits.end_timeout:
            who = some(self.missing()) or self._waiting
            return f"{who}: no agent has started within {limits.meet_timeout} s" if who else "the hosts did not meet"
        return ""
