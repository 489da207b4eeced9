"""Ranks of this machine that hang: noticed by their heartbeat, told from those that wait for them, and ended."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from attrs import define, field, frozen

from neox_core.heartbeat import STACK_SIGNAL, Heartbeats
from neox_core.plan.stored.saved import step_folders
from neox_launchers.failure import write_whole

LOOK_S = 0.5
"""Between two looks at the heartbeats."""
STACKS_S = 3.0
"""How long the ranks may take to write their stacks."""
OTHER_HOSTS_S = 10.0
"""How much longer a machine waits whose ranks all wait for another one's: the one that hangs is to be named."""
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x.*:$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line \d+ in (?P<function>.*)$')
_COLLECTIVE = ("torch/distributed/", "deepspeed/comm/", "neox_core/parallel/", "neox_gpt/exchange.py")


@frozen
class Rank:
    """A process of this machine. rank: among all ranks."""

    rank: int
    local_rank: int
    pid: int


@define
class StallWatch:
    """Looks at the heartbeats of the ranks of one machine, and ends them when one makes no progress.

    ranks: those that run now. alone: no other machine has ranks. save: where checkpoints
    lie; text: the address of a store.
    """

    ranks: Callable[[], Iterable[Rank]]
    beats: Heartbeats
    run_dir: Path
    log_dir: Path
    save: Path | str | None
    alone: bool
    asked: bool = False
    _silent: dict[int, float] = field(factory=dict)
    _last: dict[int, tuple[int, bool]] = field(factory=dict)

    def follow(self) -> None:
        """To its end, in a thread. Time in which this process was stopped itself does not count."""
        before = time.monotonic()
        while True:
            time.sleep(LOOK_S)
            now = time.monotonic()
            stalled = self.look(min(now - before, 2 * LOOK_S))
            before = now
            if stalled:
                self.end(stalled)
                return

    def look(self, passed: float) -> list[Rank]:
        """The ranks that have been silent for longer than they may be. passed: seconds since the last look."""
        stalled = []
        for rank in self.ranks():
            beat, asked = self.beats.of(rank.local_rank), self.asked
            quiet = self._last.get(rank.rank) == (beat.beats, asked)
            self._silent[rank.rank] = self._silent[rank.rank] + passed if quiet else 0.0
            self._last[rank.rank] = beat.beats, asked
            limits = [each for each in (beat.patience_s, beat.asked_patience_s if asked else 0.0) if each]
            if limits and self._silent[rank.rank] > min(limits):
                stalled.append(rank)
        return stalled

    def end(self, stalled: list[Rank]) -> None:
        """Have every rank write its stack, report those that hang, and kill all of this machine."""
        ranks = list(self.ranks())
        stopped = {each.rank for each in ranks if _is_stopped(each.pid)}
        stacks = self._stacks([each for each in ranks if each.rank not in stopped])  # one that is stopped writes none
        waiting = {each.rank for each in ranks if waits(stacks.get(each.rank, "")) and each.rank not in stopped}
        hang = [each for each in ranks if each.rank in stopped] or [
            each for each in stalled if each.rank not in waiting
        ]
        if not hang and not self.alone:
            time.sleep(OTHER_HOSTS_S)
            if any(not _is_there(each.pid) for each in ranks):
                return  # another machine has ended its own
        behind = min(self.beats.of(each.local_rank).beats for each in hang or stalled)
        hang = [each for each in hang or stalled if self.beats.of(each.local_rank).beats == behind]
        for each in ranks:
            why = "its process is stopped" if each.rank in stopped else "it waits for other ranks"
            self._report(each, why if each.rank in stopped | waiting else "", hangs=each in hang)
        for each in ranks:
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)

    def _stacks(self, ranks: Iterable[Rank]) -> Mapping[int, str]:
        """What each rank writes into its log when it is asked for its stack."""
        logs = {each.rank: self.log_dir / f"rank{each.rank}.log" for each in ranks}
        sizes = {rank: _size(log) for rank, log in logs.items()}
        for each in ranks:
            with suppress(ProcessLookupError):
                os.kill(each.pid, STACK_SIGNAL)
        deadline = time.monotonic() + STACKS_S
        while time.monotonic() < deadline and any(_size(log) == sizes[rank] for rank, log in logs.items()):
            time.sleep(0.05)
        time.sleep(0.2)  # for what is being written
        return {rank: _read_from(log, sizes[rank]) for rank, log in logs.items()}

    def _report(self, rank: Rank, why: str, *, hangs: bool) -> None:
        """failure.rank<N>.json. That of a rank which waits for one that hangs counts for less."""
        beat, silent = self.beats.of(rank.local_rank), self._silent.get(rank.rank, 0.0)
        said = f"made no progress for {silent:.0f} s after step {beat.step}{why and f': {why}'}"
        report = {
            "rank": rank.rank,
            "message": f"was asked to stop, could not save, and {said}" if self.asked else said,
            "hint": f"{self._saved()}the Python stacks of the ranks are in {self.log_dir}",
            "time": time.time(),
            "users_mistake": False,
            "lost_peer": not hangs,
            "stalled": True,
        }
        with suppress(OSError):
            write_whole(self.run_dir / f"failure.rank{rank.rank}.json", json.dumps(report))

    def _saved(self) -> str:
        """Where a run that could not save can continue."""
        if not self.asked:
            return "raise stall-timeout if a step may take so long; "
        if isinstance(self.save, str):
            return f"`--resume auto` continues from the newest checkpoint in {self.save}, if there is one; "
        with suppress(OSError):
            for last in step_folders(self.save) if self.save else ():
                return f"`--resume auto` continues from {last}; "
        return "no checkpoint was written before; "


def waits(stacks: str) -> bool:
    """Whether one of a rank's threads is inside a collective, that is: waits for another rank."""
    lines = stacks.splitlines()
    tops = [_FRAME.match(after) for line, after in pairwise(lines) if _THREAD.match(line)]
    return any(part in top["file"] for top in tops if top for part in _COLLECTIVE)


def _is_stopped(pid: int) -> bool:
    """By SIGSTOP or a debugger, as far as the system says."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][:1] in ("T", "t")
    except OSError:
        return False


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _read_from(log: Path, first: int) -> str:
    try:
        with log.open("rb") as file:
            file.seek(first)
            return file.read(1 << 20).decode("utf-8", errors="replace")
    except OSError:
        return ""
