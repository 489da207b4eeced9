"""A run whose ranks are killed, stopped, taken away and given back at random, against one that nothing disturbs.

    python benchmarks/elastic_cpu.py FOLDER [--steps 300] [--events 8] [--kinds KIND,...] [--seed 0] [--hosts] [--rows]

Four ranks over gloo on one CPU train a tiny model under `neox elastic`; two train the same under `neox train`. At each
event a rank gets SIGKILL or SIGSTOP, or the hostfile loses a slot, or is written with all four. With `--hosts` the
ranks are on two hosts, which are network namespaces with sshd of their own (this needs root and pdsh), and an event may
be that one of them loses its power; its slots join when it has power again. The command fails where
a loss of the two runs differs by more than 1e-6, where a step is missing or twice, where the checkpoint says other
numbers of ranks than metrics.jsonl, or where an event was not followed by a new start. It prints the seconds that each
event has cost, and with `--rows` appends them to benchmarks/results.csv.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from neox_author.testing import build, load_only
from results import append_row

SLOTS, LIMIT, WAIT_S, STALL_S = 4, 1e-6, 300, 20
"""WAIT_S: for how long a run may write nothing; how long it takes in all depends on the machine."""
CONFIG = """\
engine: plain
device: cpu
num-layers: 4
hidden-size: 128
num-attention-heads: 2
seq-length: 128
max-position-embeddings: 128
padded-vocab-size: 128
num-workers: 0
peak-tflops: 1
hidden-dropout: 0.1
optimizer: {{type: Adam, params: {{lr: 1.0e-3}}}}
gradient_clipping: 1.0
train-iters: {steps}
eval-interval: {steps}
eval-iters: 1
log-interval: 1
save-interval: 10
stall-timeout: {stall}
monitors: [jsonl]
split: 90,10,0
data-path: {folder}/tokens
hostfile: {folder}/hosts
elasticity: {{enabled: true, max_train_batch_size: 12, micro_batch_sizes: [1, 2, 3]}}
"""
Record = dict[str, Any]


def write_inputs(folder: Path, steps: int, seed: int) -> None:
    writer = load_only("neox-data-indexed").find("data backend", "mmap")
    tokens, draw = writer.load()(build(writer)).create(folder / "tokens", 128), random.Random(seed)
    for _ in range(200):
        tokens.add_document([draw.randrange(128) for _ in range(300)])
    tokens.close()
    (folder / "run.yml").write_text(CONFIG.format(steps=steps, folder=folder, stall=STALL_S))


def start(folder: Path, command: str, *sets: str, env: Mapping[str, str] = {}) -> subprocess.Popen[bytes]:
    words = [word for each in (f"save={folder / command}", *sets) for word in ("--set", each)]
    argv = [sys.executable, "-m", "neox_core", command, str(folder / "run.yml"), *words]
    with (folder / f"{command}.log").open("w") as log:
        return subprocess.Popen(argv, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1", **env})


def lines_of(file: Path) -> list[Record]:
    """The whole lines of a file that a process may be writing."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def steps_of(save: Path) -> list[Record]:
    return [each for each in lines_of(save / "metrics.jsonl") if "loss" in each]


def ranks_of(save: Path) -> list[int]:
    """Process ids of the ranks of a run, by rank."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            argv = (folder / "cmdline").read_text().split("\0") if folder.name.isdecimal() else []
            if "neox_core.run.rank" in argv and str(save / "run.json") in argv:
                env = dict(each.partition("=")[::2] for each in (folder / "environ").read_text().split("\0"))
                found[int(env["RANK"])] = int(folder.name)
        except (OSError, KeyError):
            continue
    return [found[rank] for rank in sorted(found)]


class Hosts:
    """The slots of a run. switch: the hosts they are on; None: all on this one."""

    def __init__(self, folder: Path, switch: Any) -> None:
        self.file, self.switch, self.off, self.writes = folder / "hosts", switch, "", 0
        self.write(SLOTS)

    def write(self, slots: int) -> None:
        """So many slots, half of them on the second host. Each file is another one."""
        names = [*self.switch.hosts] if self.switch else ["localhost"]
        counts = [slots - slots // 2, slots // 2] if self.switch else [slots]
        lines = "".join(f"{host} slots={count}\n" for host, count in zip(names, counts, strict=True))
        temporary = self.file.with_name(".hosts")
        temporary.write_text(f"{lines}# {self.writes}\n")
        temporary.replace(self.file)
        self.writes += 1

    def join(self) -> None:
        if self.off:
            self.switch.power_on(self.off)
        self.off = ""
        self.write(SLOTS)

    def lose(self, host: str) -> None:
        self.switch.power_off(host)
        self.off = host


def disturb(hosts: Hosts, save: Path, draw: random.Random, have: int, wanted: str) -> str:
    """Do one thing to a run that has `have` ranks. wanted: what; "": drawn at random. Returns it."""
    fewer = ("kill", "stop", "leave", *(("power",) if hosts.switch and not hosts.off else ()))
    kind = wanted or draw.choice([*(("join",) if have < SLOTS else ()), *(fewer if have > 2 else ())])
    if kind in ("kill", "stop"):
        os.kill(draw.choice(ranks_of(save)), signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
    elif kind == "power":
        hosts.lose(draw.choice([*hosts.switch.hosts]))
    elif kind == "join":
        hosts.join()
    else:
        hosts.write(have - 1)
    return kind


def disturbed(folder: Path, steps: int, kinds: Sequence[str], seed: int, switch: Any) -> list[tuple[str, float]]:
    """Run `neox elastic` to its end. Returns each event and the seconds that it has cost."""
    draw, save, done = random.Random(seed), folder / "elastic", []
    at = sorted(draw.sample(range(12, steps - 12, 12), len(kinds)))
    hosts = Hosts(folder, switch)
    several = ("launcher=pdsh", "host-timeout=8") if switch else ()
    process = start(folder, "elastic", *several, env=switch.env if switch else {})
    try:
        for number, (step, wanted) in enumerate(zip(at, kinds, strict=True)):
            starts, have = wait(
                process, folder, lambda step=step: (steps_of(save)[-1:] or [{"step": 0}])[0]["step"] >= step
            )
            kind = disturb(hosts, save, draw, have, wanted)
            print(f"step {step}, {have} ranks: {kind}", flush=True)
            wait(process, folder, lambda number=number: len(costs(save)) > number, starts)
            done.append(kind)
        code = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(WAIT_S)
    if code:
        raise SystemExit(f"neox elastic ended with {code}:\n{(folder / 'elastic.log').read_text()[-3000:]}")
    return list(zip(done, costs(save), strict=True))


def costs(save: Path) -> list[float]:
    return [each["lost_s"] for each in lines_of(save / "elastic.jsonl") if each["event"] == "recovered"]


def wait(process: subprocess.Popen[bytes], folder: Path, there: Any, starts: int = 0) -> tuple[int, int]:
    """Wait for `there` while the run writes metrics. Returns how often it has started, and its present ranks."""
    files = [folder / "elastic" / name for name in ("metrics.jsonl", "elastic.jsonl")]
    last, since = -1, time.monotonic()
    while not there():
        written = sum(each.stat().st_size for each in files if each.exists())
        if written != last:
            last, since = written, time.monotonic()
        if process.poll() is not None or time.monotonic() > since + WAIT_S:
            raise SystemExit(f"the run has not come to it:\n{(folder / 'elastic.log').read_text()[-3000:]}")
        time.sleep(0.02)
    found = [each for each in lines_of(folder / "elastic" / "elastic.jsonl") if each["event"] == "start"]
    if len(found) <= starts:
        raise SystemExit("an event was not followed by a start")
    return len(found), found[-1]["world_size"]


def compare(calm: Sequence[Record], mine: Sequence[Record], save: Path, steps: int) -> float:
    """The largest difference of a loss. Ends the command where the two runs are not the same."""
    wanted = list(range(1, steps + 1))
    for name, records in (("undisturbed", calm), ("disturbed", mine)):
        if [each["step"] for each in records] != wanted:
            raise SystemExit(f"the {name} run does not have each step once")
    sizes = [each["world_size"] for each in mine]
    if {each["world_size"] for each in calm} != {2}:
        raise SystemExit("the undisturbed run has not had two ranks")
    changes = [(size, step) for step, size in enumerate(sizes) if step == 0 or sizes[step - 1] != size]
    state = json.loads(next(save.glob(f"*{steps}/state.json")).read_text())
    kept = state["state"]["callbacks"]["neox-elasticity:elasticity"]["world_sizes"]
    if [(each["world_size"], each["from_step"]) for each in kept] != changes:
        raise SystemExit(f"the checkpoint says {kept}, metrics.jsonl {changes}")
    if [each["data_hash"] for each in calm] != [each["data_hash"] for each in mine]:
        raise SystemExit("the samples of the two runs are not the same")
    print("world sizes:", ", ".join(f"{size} after step {step}" for size, step in changes))
    return max(abs(one["loss"] - other["loss"]) for one, other in zip(calm, mine, strict=True))


@contextmanager
def two_hosts(folder: Path) -> Iterator[Any]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "neox-launchers" / "tests"))
    from clusters import Switch

    (folder / "switch").mkdir()
    switch = Switch(folder / "switch")
    try:
        yield switch
    finally:
        switch.remove()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="an empty folder for the runs")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--events", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default="", help="the events, such as kill,join, in the place of random ones")
    parser.add_argument("--hosts", action="store_true", help="ranks on two network namespaces, started by pdsh")
    parser.add_argument("--rows", action="store_true", help="append rows to benchmarks/results.csv")
    words = parser.parse_args()
    folder = words.folder.resolve()
    folder.mkdir(parents=True)
    write_inputs(folder, words.steps, words.seed)
    (folder / "hosts").write_text("localhost slots=2\n")
    if start(folder, "train").wait():
        raise SystemExit((folder / "train.log").read_text()[-3000:])
    kinds = words.kinds.split(",") if words.kinds else [""] * words.events
    with two_hosts(folder) if words.hosts else nullcontext() as switch:
        found = disturbed(folder, words.steps, kinds, words.seed, switch)
    worst = compare(steps_of(folder / "train"), steps_of(folder / "elastic"), folder / "elastic", words.steps)
    for kind, seconds in found:
        print(f"{kind:6} cost {seconds:.1f} s")
    print(f"largest difference of a loss: {worst:.3g}")
    if worst > LIMIT:
        raise SystemExit(f"the losses differ by more than {LIMIT}")
    if words.rows:
        where = f"{SLOTS} ranks" + (", 2 hosts" if words.hosts else "")
        for kind in sorted({kind for kind, _ in found}):
            append_row("elastic_cpu", f"{kind}, 2 to {where}", "s lost", [cost for one, cost in found if one == kind])
        append_row("elastic_cpu", f"loss, {words.steps} steps, {len(found)} events, {where}", "difference", [worst])


if __name__ == "__main__":
    main()
