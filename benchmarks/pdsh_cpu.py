"""What it costs the starting machine to talk to many hosts by pdsh, which has an ssh process for each of them.

    python benchmarks/pdsh_cpu.py FOLDER [--hosts 128,1024] [--logins 64] [--times 3] [--rows]

* start: seconds from the start of pdsh, with the options of the launcher, until the last of so many commands has
  written a line. The commands are processes of this machine (`-R exec`), which costs more than ssh would cost here.
* login: CPU milliseconds of this machine for one ssh, from its start to its end: real logins to an sshd of one's own on
  127.0.0.1, whose CPU does not count. memory: what one ssh holds for itself, in MiB.

A tree of hosts would save the start and the logins of the starting machine, and add a login in a row for each level.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from neox_launchers.pdsh import OPTIONS
from results import append_row

from neox_core.files import allow_many_files

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "neox-launchers" / "tests"))

from clusters import sshd, stop_daemons

WAITS_S = 5


def pdsh(kind: str, hosts: str, command: str, env: dict[str, str]) -> tuple[float, int]:
    """Seconds until the last line, and how many lines came. Returns when pdsh has ended."""
    options = ["exec" if (word, kind) == ("ssh", "exec") else word for word in OPTIONS]
    began, last, lines = time.monotonic(), 0.0, 0
    words = ["pdsh", *options, "-w", hosts, *command.split(" ", 2)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, **env}) as running:
        for _ in running.stdout or ():
            last, lines = time.monotonic() - began, lines + 1
    return last, lines


def start(count: int) -> float:
    seconds, lines = pdsh("exec", f"h[0-{count - 1}]", f"sh -c echo here; exec sleep {WAITS_S + count // 50}", {})
    if lines != count:
        raise SystemExit(f"{lines} of {count} commands have said something")
    return seconds


def own_memory(pid: int) -> float:
    """MiB that a process shares with no other."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")) / 1024


def login(folder: Path, count: int) -> tuple[float, float]:
    """CPU milliseconds, MiB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ssh = ["ssh", "-F", str(folder / "ssh_config"), "127.0.0.1", f"echo here; exec sleep {WAITS_S}"]
    running = [subprocess.Popen(ssh, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) for _ in range(count)]
    for each in running:
        if each.stdout is None or each.stdout.readline() != b"here\n":
            raise SystemExit("an ssh did not get through")
    memory = statistics.median(own_memory(each.pid) for each in running)
    for each in running:
        each.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) / count, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hosts", default="128,1024")
    parser.add_argument("--logins", type=int, default=64)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--rows", action="store_true", help="append rows to benchmarks/results.csv")
    words = parser.parse_args()
    allow_many_files()
    words.folder.mkdir(parents=True, exist_ok=True)
    found: dict[tuple[str, str], list[float]] = {}
    for count in map(int, words.hosts.split(",")):
        found[f"{count} hosts: start", "s"] = [start(count) for _ in range(words.times)]
    sshd(words.folder, ["127.0.0.1"], more=f"MaxStartups {2 * words.logins}\nMaxSessions {2 * words.logins}\n")
    while not (words.folder / "sshd.pid").exists():  # it is a daemon before it listens
        time.sleep(0.1)
    try:
        logins = [login(words.folder, words.logins) for _ in range(words.times)]
    finally:
        stop_daemons(words.folder)
    found["login", "CPU ms"] = [each[0] for each in logins]
    found["memory of an ssh", "MiB"] = [each[1] for each in logins]
    for (case, unit), values in found.items():
        print(f"{case}: {', '.join(f'{each:.3g}' for each in values)} {unit}", flush=True)
        if words.rows:
            append_row("pdsh_cpu", case, unit, values)


if __name__ == "__main__":
    main()
