"""`python -m neox_launchers.relay RUN_FILE FOLDER NAMES AGENT... N`: start part N of the hosts, pass their output on.

pdsh starts it on the first host of the part, whose agent it runs itself; those of the others it starts by ssh, in
FOLDER, with the variables NAMES. Each agent reads a pipe that ends when this process does, however it ends, and when
its stdin ends, since the machine that started it or the connection is gone. Exit code: the largest of all.
"""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, cast

from neox_core.errors import RankError, run_main
from neox_core.interpreter import STOP_SIGNALS, start_thread
from neox_core.plan.runfile import RunPlan
from neox_launchers.agents import Words, login, names, read_plan, settings_of, ssh_options
from neox_launchers.failure import SHUTDOWN_S
from neox_launchers.pdsh import GO_FLAT, OF_SSH, for_shell, parts

CONNECT_S = 10
"""As pdsh has it; of two values ssh takes the first."""
LAST_WORDS_S = 1.0
"""For the output of a process that has ended."""
LONGEST = 1 << 16
"""Bytes that are passed on at once of a line that does not end."""
LEFT_S = SHUTDOWN_S + 10.0
"""For the agents to end when their pipes have ended."""

Process = subprocess.Popen[bytes]


def main() -> int:
    """Run the agents of a part. Returns the exit code."""
    run_file, folder, given, *agent, number = sys.argv[1:]
    plan = read_plan(Path(run_file))
    hosts, part = names(plan), parts(plan, settings_of(plan))[int(number)]
    env = {name: os.environ[name] for name in given.split(",")}
    running: dict[int, Process] = {}
    for node in reversed(part):
        own = (*agent, str(node))
        words = own if node == part[0] else (*ssh(plan, hosts[node], node), " ".join(for_shell(own, env, folder)))
        running[node] = _start(words)

    def ask(signum: int, frame: FrameType | None) -> None:
        """The agent of this host asks its ranks, which agree on it with all others."""
        running[part[0]].send_signal(signum)

    for signum in STOP_SIGNALS:
        signal.signal(signum, ask)
    start_thread(_follow_stdin, [*running.values()], name="neox-parent")
    deaf = partial(signal.pthread_sigmask, signal.SIG_BLOCK, STOP_SIGNALS)  # as start_thread makes a thread
    with ThreadPoolExecutor(len(part), initializer=deaf) as pool:
        return max(pool.map(lambda node: _follow(running[node], hosts[part[0]], hosts[node]), part))


def ssh(plan: RunPlan, host: str, node: int) -> Words:
    """The words by which pdsh would log in to a host from here."""
    args = os.environ.get(OF_SSH[0]) or "-2 -a -x %h"
    user = login(plan).get("-l") or getpass.getuser()
    for mark, value in (("%h", host), ("%u", user), ("%n", str(node))):
        args = args.replace(mark, value) if mark in args or mark != "%h" else f"{args} {value}"
    options = f"{os.environ.get(OF_SSH[1], '')} -oConnectTimeout={CONNECT_S} {ssh_options(plan)}"
    return ("ssh", *options.split(), *args.split())


def _start(words: Words) -> Process:
    pipe = subprocess.PIPE  # each its own: ssh makes its stdin one that does not wait, for all that share it
    try:
        return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as error:
        hint = f"install it on each host, or {GO_FLAT}"
        raise RankError(f"cannot start {words[0]}: {error.strerror}", hint=hint) from error


def _follow(process: Process, here: str, host: str) -> int:
    """Pass on the output, line by line, and name a host that does not end well, as pdsh does."""
    copies = [
        threading.Thread(target=_copy, args=each, daemon=True) for each in ((process.stdout, 1), (process.stderr, 2))
    ]
    for each in copies:
        each.start()
    code = process.wait()
    for each in copies:
        each.join(LAST_WORDS_S)  # a child that is left may hold the pipe open
    if code:
        what = "its agent" if host == here else "ssh"
        _write(2, f"neox@{here}: {host}: {what} exited with exit code {code}\n".encode())
    return abs(code)


def _copy(stream: IO[bytes], to: int) -> None:
    while line := stream.readline(LONGEST):
        _write(to, line)


def _write(to: int, line: bytes) -> None:
    with suppress(OSError):  # its reader is gone, and the agents are not to wait for that
        os.write(to, line)


def _follow_stdin(running: Collection[Process]) -> None:
    """End all agents when the connection to the first machine is gone, and ssh where an agent does not end by that."""
    while os.read(0, 4096):
        continue
    for process in running:
        cast("IO[bytes]", process.stdin).close()
    time.sleep(LEFT_S)
    for process in running:
        process.kill()


if __name__ == "__main__":
    run_main(main)
