"""Saves a run while it trains: each rank copies what it stores into shared memory, and a process writes the copy.

The processes of the ranks need no connection: the first rank's one waits for the notes of the others in the folder of
the checkpoint, or in the store, before it writes the manifest.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from attrs import asdict, define, frozen

from neox_core.checkpoint.agree import on_all_ranks
from neox_core.checkpoint.publish import discard
from neox_core.checkpoint.tensor_file import layout
from neox_core.checkpoint.write import note_of
from neox_core.errors import CheckpointError
from neox_core.interpreter import python
from neox_plain.background.memory import (
    ALIGNED,
    LEAST_LEFT,
    MOST_TAKEN,
    PAYS,
    SharedMemory,
    expected_bytes,
    free_memory,
)
from neox_plain.background.process import COMPLETE, WRITTEN

if TYPE_CHECKING:
    from neox_core.checkpoint.publish import Ending
    from neox_core.checkpoint.write import RankContents
    from neox_core.contracts.engine import Storage
    from neox_core.contracts.store import StoredCheckpoints
    from neox_core.parallel.context import BuildContext
    from neox_core.plan.runfile import RunPlan

POLL_S = 0.05
LONG_S = 0.1
"""A longer wait for a checkpoint is told."""
OTHERS_S = 10.0
"""After an error, how long the first rank waits for the files of the others."""


@frozen
class _Save:
    """The save at hand. stopped_s: for how long the run did not train."""

    step: int
    shown: Path | str
    written: Path
    began: float
    stopped_s: float


@define(eq=False)
class _Answers:
    """What the process has said of the save at hand."""

    at: str = ""
    told: bool = False
    failure: CheckpointError | None = None
    took_s: float = 0.0


class Writer:
    """`contracts.engine.BackgroundWriter`. The process is started at the first save, and kept."""

    def __init__(self, plan: RunPlan, context: BuildContext, engine: Storage) -> None:
        self._plan = plan
        self._context = context
        self._engine = engine
        self._always = bool(plan.checkpoint.background)
        self._pays: bool | None = True if self._always else None
        self._prepared = False
        self._rank = 0 if context.groups.world is None else dist.get_rank()
        self._ranks_here = max(host.slots for host in plan.cluster.hosts)
        self._memory = SharedMemory()
        self._process: subprocess.Popen[bytes] | None = None
        self._save: _Save | None = None
        self._answers = _Answers()
        self._lines: list[str] = []

    def start(
        self,
        collected: Callable[..., AbstractContextManager[RankContents]],
        ending: Callable[[], Ending],
        shown: Path | str,
        store: StoredCheckpoints | None,
    ) -> bool:
        """As `contracts.engine.BackgroundWriter.start`."""
        if not self._worth():
            return False
        began = time.monotonic()
        end = ending()
        job = {"folder": end.written, "rank": self._rank, "ending": asdict(end) if self._rank == 0 else None}
        place = self._agreed(partial(self._copy, collected, {**job, "store": self._described(store)}))
        if not self._everywhere(place is not None) or place is None:
            if self._always:
                self._lines.append("the memory is too small for a copy of the model: the run waits for the checkpoint")
            else:
                self._pays = False
                self._end()
                self._memory.close()
                self._memory = SharedMemory()
            return False
        self._answers = _Answers()
        self._agreed(partial(self._send, f"{place[0]} {place[1]}\n"))
        self._save = _Save(end.step, shown, Path(end.written), began, time.monotonic() - began)
        return True

    def wait(self) -> list[tuple[int, Path | str]]:
        """As `contracts.engine.BackgroundWriter.wait`."""
        save, began = self._save, time.monotonic()
        if save is None:
            return []
        try:
            while not self._everywhere(self._agreed(partial(self._complete, POLL_S))):
                pass
        except CheckpointError:
            self._end()
            if (self._rank == 0 or self._plan.checkpoint.save_folder is None) and save.written.exists():
                with suppress(OSError):
                    discard(save.written)
            raise
        waited = time.monotonic() - began
        if waited > LONG_S:
            self._lines.append(f"waited {waited:.1f} s for the checkpoint of step {save.step}")
        self._save = None
        self._tell(save)
        return [(save.step, save.shown)]

    def attend(self, say: Callable[[str], None]) -> bool:
        """As `contracts.engine.BackgroundWriter.attend`. Where it is asked for, the kernel gets the memory
        after the first update, else at the first save.
        """
        failed = False
        if self._always and not self._prepared:
            self._prepare()
        if self._save is not None and self._answers.at != COMPLETE:
            try:
                if self._complete(0.0):
                    self._tell(self._save)
            except CheckpointError:
                failed = True
        for line in self._lines:
            say(line)
        self._lines.clear()
        return failed

    def close(self) -> None:
        """As `contracts.engine.BackgroundWriter.close`."""
        limit = None
        while self._save is not None:
            with suppress(CheckpointError):
                if not self._complete(POLL_S) and (limit is None or time.monotonic() < limit):
                    if self._answers.at == WRITTEN and limit is None:
                        limit = time.monotonic() + OTHERS_S
                    continue
            self._save = None
        self._end()

    def _worth(self) -> bool:
        """Whether it is asked for, or a rank stores so much that training should not wait. Collective."""
        if self._pays is None:
            most = torch.tensor(self._size(), device=self._context.device)
            if self._context.groups.world is not None:
                dist.all_reduce(most, dist.ReduceOp.MAX, group=self._context.groups.world)
            if not most:
                return False
            self._pays = bool(most >= PAYS)
        return self._pays

    def _size(self) -> int:
        return expected_bytes(self._engine, self._context.groups, optimizer=self._plan.checkpoint.save_optimizer)

    def _prepare(self) -> None:
        size = self._size()
        if size:
            self._prepared = True
            with suppress(OSError):
                if self._room(size) is not None:
                    self._memory.fill()

    def _copy(
        self, collected: Callable[..., AbstractContextManager[RankContents]], job: dict[str, Any]
    ) -> tuple[int, int] | None:
        """Copy the files of this rank as they will be, and the job after them; None without the memory for it."""
        with collected(check=False) as contents:
            files = {file: layout(tensors) for file, tensors in contents.tensors.items()}
            places, end = {}, 0
            for file, (text, tensors) in files.items():
                first = -(-end // ALIGNED) * ALIGNED
                end = first + len(text) + sum(each.numel() * each.element_size() for each in tensors)
                places[file] = first, end
            rest = json.dumps({**job, "files": places, "note": note_of(contents)}).encode()
            try:
                memory = self._room(end + len(rest))
            except OSError:
                memory = None
            if memory is None:
                return None
            for file, (text, tensors) in files.items():
                at = memory.put(places[file][0], text)
                for tensor in tensors:
                    at = memory.copy(at, tensor)
            return end, memory.put(end, rest)

    def _room(self, size: int) -> SharedMemory | None:
        """Shared memory of at least `size` bytes; None where the host has too little."""
        more = max(0, size - self._memory.size) * self._ranks_here
        if more and more > (1 - LEAST_LEFT if self._always else MOST_TAKEN) * free_memory():
            return None
        self._memory.grow(size)
        return self._memory

    def _described(self, store: StoredCheckpoints | None) -> dict[str, Any] | None:
        if store is None:
            return None
        plan = next(each for each in self._plan.checkpoint.stores if each.url == self._plan.checkpoint.save)
        named = {"url": plan.url, "folder": plan.folder, "token": store.token}
        return {**named, "component": plan.component.plain()}

    def _send(self, line: str) -> None:
        """Give the process a job; start it, where there is none."""
        try:
            if self._process is None:
                command = python("neox_plain.background.process", str(self._memory.descriptor), str(os.getpid()))
                sys.stderr.flush()
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    pass_fds=(self._memory.descriptor,),
                    bufsize=0,
                    start_new_session=True,  # Ctrl-C is for the ranks
                )
            if self._process.stdin is not None:
                self._process.stdin.write(line.encode())
        except OSError as error:
            raise CheckpointError(
                f"cannot start the process that writes checkpoints: {error.strerror or error}"
            ) from error

    def _complete(self, timeout_s: float) -> bool:
        """Whether the process has said that all is done. Raises CheckpointError with what it said, or when it ended."""
        answers, process = self._answers, self._process
        if answers.failure is not None:
            raise answers.failure
        if answers.at == COMPLETE or process is None or process.stdout is None:
            return True
        poll = select.poll()  # select() knows no file beyond the 1,024th
        poll.register(process.stdout, select.POLLIN)
        if poll.poll(1000 * timeout_s):
            line = process.stdout.readline()
            said = json.loads(line) if line.endswith(b"\n") else {"message": self._gone(process)}
            if "message" in said:
                answers.failure = CheckpointError(said["message"], hint=said.get("hint", ""))
                raise answers.failure
            answers.at = said["at"]
            answers.took_s = 0.0 if self._save is None else time.monotonic() - self._save.began
        return answers.at == COMPLETE

    def _gone(self, process: subprocess.Popen[bytes]) -> str:
        process.kill()
        return f"the process that writes checkpoints has ended, with code {process.wait()}; nothing was saved since"

    def _tell(self, save: _Save) -> None:
        took, stopped = self._answers.took_s, save.stopped_s
        if not self._answers.told:
            self._answers.told = True
            self._lines.append(f"saved {save.shown} in {took:.1f} s, of which training waited {stopped:.2f} s")

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._save = None

    def _agreed(self, act: Callable[[], Any]) -> Any:
        return on_all_ranks(act, self._context.groups, self._context.device)

    def _everywhere(self, holds: bool) -> bool:
        if self._context.groups.world is None:
            return holds
        fewest = torch.tensor(int(holds), device=self._context.device)
        dist.all_reduce(fewest, dist.ReduceOp.MIN, group=self._context.groups.world)
        return bool(fewest)
