"""Many agents on one machine: how long hosts take to meet, to stop and to hear that one has failed or is silent.

    unshare -n sh -c "ip link set lo up; python benchmarks/hosts_cpu.py [--hosts 128,1024] [--times 3] [--rows]"

The first host is a process of its own with the store, as on a cluster. The others are agents without ranks, many to a
process, which is forked after torch is imported: each has the `Meeting` and `Neighbours` of neox-launchers, its own
connections and its own threads. On this machine all of them share the cores that one agent has for itself on a
cluster, so the times are upper bounds. The network namespace has no DNS: torch's store looks up the name of each
address that connects, and with a slow DNS this is all that would be measured. What is measured, in seconds:

* meet: from the first call until the last host knows that all are there.
* stop: from the file `stop` until the last host asks its ranks to stop.
* fail: from a rank's failure on the last host until the last other host ends its ranks.
"""

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neox_launchers.failure import STOP
from neox_launchers.meeting import Meeting
from neox_launchers.neighbours import Neighbours
from results import append_row

from neox_core.files import allow_many_files

AGENTS = 64
"""In one process, two threads each once they have met."""
LIMIT_S = 600


class Agent:
    """One host of the simulation; it writes the moments of its events into a row of a table that all share."""

    def __init__(self, node: int, count: int, port: int, folder: Path, table: Any, fails: Any) -> None:
        hosts = [f"h{each}" for each in range(count)]
        self.node, self.table, self.fails, self.count = node, table, fails, count
        self.stop, self.over = threading.Event(), threading.Event()
        self.meeting = Meeting(hosts, node, "127.0.0.1", port, "token", LIMIT_S, self.stop, folder / STOP)
        self.neighbours = Neighbours(
            lambda: self.meeting.store,
            node,
            hosts,
            folder,
            60,
            failed=lambda: bool(fails.value) and node == count - 1,
            over=lambda: False,
            ask=lambda: self.mark(1),
            end=lambda: self.mark(2),
        )

    def mark(self, event: int) -> None:
        self.table[3 * self.node + event] = time.monotonic()

    def run(self) -> None:
        self.neighbours.start()
        self.meeting.next_rendezvous()
        self.mark(0)


def host(nodes: Sequence[int], count: int, port: int, folder: Path, table: Any, fails: Any) -> None:
    """Some hosts in one process, until it is killed."""
    allow_many_files()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what agents say to the process that starts them
    for node in nodes:
        threading.Thread(target=Agent(node, count, port, folder, table, fails).run, daemon=True).start()
    threading.Event().wait()


def last(table: Any, count: int, event: int, nodes: Sequence[int]) -> float:
    """When the last of some hosts has come to an event."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        moments = [table[3 * node + event] for node in nodes]
        if all(moments):
            return max(moments)
        time.sleep(0.05)
    raise SystemExit(f"{sum(not each for each in moments)} of {count} hosts did not come to event {event}")


def simulate(count: int, port: int) -> dict[str, float]:
    context = multiprocessing.get_context("fork")
    table, fails = context.Array("d", 3 * count, lock=False), context.Value("b", 0)
    groups = [[0], *([*range(count)][first : first + AGENTS] for first in range(1, count, AGENTS))]
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.monotonic()
        running = [
            context.Process(target=host, args=(group, count, port, folder, table, fails), daemon=True)
            for group in groups
        ]
        try:
            for each in running:
                each.start()
            met = last(table, count, 0, range(count)) - began
            time.sleep(3)
            asked = time.monotonic()
            (folder / STOP).write_text("asked")
            stopped = last(table, count, 1, range(count)) - asked
            failed = time.monotonic()
            fails.value = 1
            ended = last(table, count, 2, range(count - 1)) - failed
        finally:
            for each in running:
                each.kill()
                each.join()
    return {"meet": met, "stop": stopped, "fail": ended}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="128,1024", help="numbers of hosts")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--port", type=int, default=29600)
    parser.add_argument("--rows", action="store_true", help="append rows to benchmarks/results.csv")
    words = parser.parse_args()
    allow_many_files()
    for count in map(int, words.hosts.split(",")):
        found = [simulate(count, words.port + time_) for time_ in range(words.times)]
        for event in found[0]:
            values = [each[event] for each in found]
            print(f"{count} hosts, {event}: {', '.join(f'{each:.2f}' for each in values)} s", flush=True)
            if words.rows:
                append_row("hosts_cpu", f"{count} hosts: {event}", "s", values)


if __name__ == "__main__":
    main()
