"""Training runs that take turns: all are started once, and one at a time goes on while the others are stopped."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import psutil

POLL_S = 0.002
PATIENCE_S = 900  # for a step: the first may compile for minutes, next to others that do
SETTLE = 1
"""Steps at the start of a turn that do not count: machines take memory from processes that are stopped."""


class Contender:
    """A process that writes one JSON object a step, with `tokens_per_s` and `memory_gib`, to the file `lines`.

    Lines without `tokens_per_s` do not count. env: on top of this process's. Where `lines` is None, its standard
    output is taken.
    """

    def __init__(
        self, argv: list[str], folder: Path, env: Mapping[str, str], lines: Path | None = None, cwd: Path | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._output = folder / "output"
        self._lines = lines or self._output
        self._argv = argv
        with self._output.open("wb") as output:
            self._process = psutil.Popen(argv, stdout=output, stderr=subprocess.STDOUT, env=os.environ | env, cwd=cwd)
        self._stopped: list[psutil.Process] = []
        self._read = 0
        self._rest = b""
        self.steps: list[dict[str, Any]] = []

    def wait(self, steps: int) -> None:
        """Until `steps` of them are done."""
        began = time.monotonic()
        while not self.has_done(steps):
            if time.monotonic() - began > PATIENCE_S:
                self.give_up(steps)
            time.sleep(POLL_S)

    def has_done(self, steps: int) -> bool:
        """Whether `steps` of them are done. Ends the benchmark, with what it has said, where it ended before."""
        ended = self._process.poll() is not None
        self._look()
        if ended and len(self.steps) < steps:
            self.give_up(steps)
        return len(self.steps) >= steps

    def give_up(self, steps: int) -> NoReturn:
        """End the benchmark, with what the process has said."""
        said = self._output.read_text(errors="replace")[-5000:]
        sys.exit(f"{' '.join(self._argv)} stopped after {len(self.steps)} of {steps} steps:\n{said}")

    def turn(self, steps: int) -> float:
        """Go on for SETTLE steps, and then for `steps`, then hold still. Returns the seconds that the latter took."""
        self.go_on()
        self.wait(len(self.steps) + SETTLE)
        began = self.clock()
        self.wait(len(self.steps) + steps)
        took = self.clock() - began
        self.hold()
        return took

    def hold(self) -> None:
        self._stopped = self._tree()
        for process in self._stopped:
            process.suspend()

    def go_on(self) -> None:
        for process in self._stopped:
            process.resume()
        self._stopped = []

    def end(self) -> None:
        for process in self._tree():
            process.kill()
        self._process.wait()

    def clock(self) -> float:
        return time.perf_counter()

    @property
    def processor_s(self) -> float:
        """Seconds of the processor that its processes have used."""
        return sum(sum(process.cpu_times()[:2]) for process in self._tree())

    @property
    def memory_gib(self) -> float:
        return max(step["memory_gib"] for step in self.steps)

    def _tree(self) -> list[psutil.Process]:
        if self._process.poll() is not None:
            return []
        return [self._process, *self._process.children(recursive=True)]

    def _look(self) -> None:
        if not self._lines.exists():
            return
        with self._lines.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        *whole, self._rest = (self._rest + new).split(b"\n")
        self.steps += [json.loads(line) for line in whole if b'"tokens_per_s"' in line]


def neox_train(
    config: Mapping[str, Any], folder: Path, env: Mapping[str, str], python: str = sys.executable
) -> Contender:
    """`neox train` with `config`, in which `save` is set to a place in `folder`. python: what runs it."""
    folder.mkdir(parents=True)
    file = folder / "config.json"
    file.write_text(json.dumps({**config, "save": str(folder / "save")}))
    argv = [python, "-m", "neox_core", "train", str(file)]
    return Contender(argv, folder, env, folder / "save" / "metrics.jsonl", cwd=folder)


def take_turns(
    contenders: Mapping[str, Contender], uncounted: int, rounds: int, steps: int, tokens: int
) -> dict[str, list[float]]:
    """Tokens per second of each contender in each round, after `uncounted` steps of each that do not count.

    steps: of a turn. tokens: of a step. All end here, come what may.
    """
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    try:
        warm_up(list(contenders.values()), uncounted)
        for index in range(rounds):
            for name in _from(index, list(contenders)):
                rates[name].append(steps * tokens / contenders[name].turn(steps))
    finally:
        for contender in contenders.values():
            contender.end()
    return rates


def warm_up(contenders: list[Contender], steps: int) -> None:
    """All at once, since compiling leaves processors idle; each is held when it has done its steps."""
    began = time.monotonic()
    while contenders:
        for contender in [each for each in contenders if each.has_done(steps)]:
            contender.hold()
            contenders.remove(contender)
        if contenders and time.monotonic() - began > PATIENCE_S:
            contenders[0].give_up(steps)
        time.sleep(20 * POLL_S)


def _from(index: int, names: list[str]) -> Iterable[str]:
    """Every round begins with another one."""
    start = index % len(names)
    return names[start:] + names[:start]
