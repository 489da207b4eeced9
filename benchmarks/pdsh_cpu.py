"""What it costs the starting machine to talk to many hosts by pdsh, which has an ssh process for each of them.

    unshare -n sh -c "ip link set lo up; python benchmarks/pdsh_cpu.py FOLDER [--hosts 128,1024] [--times 5] [--rows]"

pdsh, with the options of the launcher, logs in to so many addresses of this machine, which has an sshd of its own in a
network namespace: to all of them, and then to the relays of a tree, which log in to the others. Each login writes a
line and waits.

Each number is measured with the exchange of keys that ssh prefers by itself, and with curve25519-sha256.

* start: seconds from the start of pdsh until the last line. sshd, what it starts and the relays share the cores of this
  machine, which on a cluster are those of the hosts, so that this is an upper bound.
* starting machine: CPU seconds of pdsh and its ssh processes, without those of sshd, relays and their ssh.
* login: CPU milliseconds of pdsh and its ssh processes for one of its logins. memory: what one ssh holds for itself, in
  MiB.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

from neox_launchers.agents import settings_of
from neox_launchers.hosts import descendants
from neox_launchers.pdsh import OPTIONS, parts, remote
from results import append_row

from neox_core.files import allow_many_files
from neox_core.interpreter import python
from neox_core.plan.runfile import write_runfile

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "neox-launchers" / "tests"))

from clusters import plan_for, sshd, stop_daemons

SSH = "PDSH_SSH_ARGS_APPEND"
KEYS = {"": "", ", curve25519": " -oKexAlgorithms=^curve25519-sha256"}
FEWEST_S = 10
"""For which a login waits; one host of 20 more, so that all are there at once."""


PATIENCE_S = 600
"""For the logins of relays, which share this machine."""


def own_memory(pid: int) -> float:
    """MiB that a process shares with no other."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")) / 1024


def start(count: int, env: dict[str, str], folder: Path, tree: bool) -> dict[tuple[str, str], float]:
    hosts = [f"127.1.{each // 250}.{each % 250 + 1}" for each in range(count)]
    agent: tuple[str, ...] = ("sh", "-c", f"echo here; exec sleep {FEWEST_S + count // 20}")
    if tree:
        plan = plan_for(folder, "pdsh", hosts, pdsh_tree_from=2)
        write_runfile(plan, folder / "run.json")
        hosts = [hosts[part[0]] for part in parts(plan, settings_of(plan))]
        agent = python("neox_launchers.relay", str(folder / "run.json"), str(folder), ",".join(env), *agent)
    before, began, lines, memory = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), 0, 0.0
    words = ["pdsh", *OPTIONS, "-w", ",".join(hosts), *remote(agent, env, str(folder)), "%n"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, **env}) as running:
        for _ in running.stdout or ():
            lines += 1
            if lines == count:
                took = time.monotonic() - began
                memory = own_memory(descendants(running.pid)[0])
                running.stdout.read() if running.stdout else None
    if lines != count:
        raise SystemExit(f"{lines} of {count} logins got through")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    one = {("login", "CPU ms"): 1000 * cpu / len(hosts), ("memory of an ssh", "MiB"): memory}
    return {("start", "s"): took, ("starting machine", "CPU s"): cpu, **one}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hosts", default="128,1024")
    parser.add_argument("--ways", default="flat,tree")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--rows", action="store_true", help="append rows to benchmarks/results.csv")
    words = parser.parse_args()
    allow_many_files()
    words.folder.mkdir(parents=True)
    # a home without files of a shell, which might start programs at each login
    env = sshd(words.folder, ["0.0.0.0"], more=f"MaxStartups 10000\nSetEnv HOME={words.folder}\n")
    while not (words.folder / "sshd.pid").exists():  # it is a daemon before it listens
        time.sleep(0.1)
    try:
        for count, keys, kind in product(map(int, words.hosts.split(",")), KEYS, words.ways.split(",")):
            tree = kind == "tree"
            way = {SSH: f"{env[SSH]}{KEYS[keys]} -oConnectTimeout={PATIENCE_S}"}
            found = [start(count, way, words.folder, tree) for _ in range(words.times)]
            for case, unit in found[0]:
                values = [each[case, unit] for each in found]
                label = f"{count} hosts{' in a tree' if tree else ''}{keys}: {case}"
                print(f"{label}: {', '.join(f'{each:.3g}' for each in values)} {unit}", flush=True)
                if words.rows:
                    append_row("pdsh_cpu", label, unit, values)
    finally:
        stop_daemons(words.folder)


if __name__ == "__main__":
    main()
