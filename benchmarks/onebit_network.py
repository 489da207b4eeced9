"""1-bit Adam against Adam where the network is slow: two ranks, each in a network namespace of its own.

    sudo .venv/bin/python benchmarks/onebit_network.py [--links 1gbit 100mbit] [--steps 21] [--freeze-step 4]
        [--repeats 2]

The namespaces are joined by a pair of virtual cards, both ends held to the rate of the link by `tc` (token bucket). In
each repeat every optimizer trains once, one after the other, in fresh processes: 14 M parameters, 512 tokens a rank and
step, fp32, one thread a rank. Counted are the seconds of a step (of the log, of all steps after the first), apart for
exact and compressed ones, those of all steps together, warm-up included, and the bytes that a card has sent in a step,
with all headers. Of the steps that are counted 3 in 20 are exact, the share of the paper's run of BERT-Large.

Needs root, `ip` and `tc` (iproute2), and two cores; both links take seven minutes. Rows are appended to
benchmarks/results.csv. Namespaces are removed at the end, also where the program is interrupted or terminated.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from results import append_row
from train_cpu import SHAPES, config_of, write_dataset

from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import write_runfile

SPACES, CARDS, ADDRESSES = ("neox-a", "neox-b"), ("neox-va", "neox-vb"), ("10.77.0.1", "10.77.0.2")
PORT = 29611
SHAPE = SHAPES["14m"]


def command(*argv: str) -> str:
    """Its output; ends the program with what it says where it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(argv)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def inside(space: str, *argv: str) -> list[str]:
    return ["ip", "netns", "exec", space, *argv]


@contextmanager
def link(rate: str) -> Iterator[None]:
    """Two namespaces with a link of this rate between them; what a killed run has left goes first."""
    remove()
    try:
        for space in SPACES:
            command("ip", "netns", "add", space)
        command("ip", "link", "add", CARDS[0], "type", "veth", "peer", "name", CARDS[1])
        for space, card, address in zip(SPACES, CARDS, ADDRESSES, strict=True):
            command("ip", "link", "set", card, "netns", space)
            command(*inside(space, "ip", "address", "add", f"{address}/24", "dev", card))
            command(*inside(space, "ip", "link", "set", "lo", "up"))
            command(*inside(space, "ip", "link", "set", card, "up"))
            bucket = ("tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
            command(*inside(space, "tc", "qdisc", "add", "dev", card, "root", *bucket))
        yield
    finally:
        remove()


def remove() -> None:
    """With a namespace goes its end of the pair of cards, and with that the pair."""
    for space in SPACES:
        subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)


def optimizer(name: str, freeze_step: int) -> dict[str, Any]:
    params: dict[str, Any] = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8}
    if name == "OneBitAdam":
        params |= {"freeze_step": freeze_step, "cuda_aware": False, "comm_backend_name": "gloo"}
    return {"optimizer": {"type": name, "params": params}}


def train(name: str, steps: int, freeze_step: int, data: Path, folder: Path) -> tuple[list[float], list[float]]:
    """Of one run, for each step after the first: seconds, and MB that the first rank's card has sent."""
    folder.mkdir()
    changed = {
        "num_gpus": 2,
        "train_micro_batch_size_per_gpu": 1,
        "no-save-optim": True,
        "save": str(folder / "save"),
    }
    config = config_of(SHAPE, steps, data) | changed | optimizer(name, freeze_step)
    if name == "OneBitAdam":
        del config["lr-decay-style"]
    file, runfile, log = folder / "config.json", folder / "run.json", folder / "save" / "metrics.jsonl"
    file.write_text(json.dumps(config))
    write_runfile(prepare_run([file], machine=Machine(num_cuda=0, num_cores=2)).plan, runfile)
    ranks = [start(rank, runfile, folder) for rank in range(2)]
    counts: list[int] = []
    try:
        while any(rank.poll() is None for rank in ranks):
            if any(rank.returncode for rank in ranks):
                break
            counts += [sent()] * (len(logged(log)) - len(counts))
            time.sleep(0.02)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(rank.returncode for rank in ranks):
        sys.exit("\n".join((folder / f"rank{rank}.log").read_text() for rank in range(2)))
    seconds = [2 * SHAPE.seq / json.loads(line)["tokens_per_s"] for line in logged(log)]
    counts += [sent()] * (len(seconds) - len(counts))
    return seconds[1:], [(after - before) / 1e6 for before, after in pairwise(counts)]


def start(rank: int, runfile: Path, folder: Path) -> subprocess.Popen[bytes]:
    where = {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": CARDS[rank]}
    place = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    argv = inside(SPACES[rank], sys.executable, "-m", "neox_core.run.rank", str(runfile))
    with (folder / f"rank{rank}.log").open("wb") as log:
        return subprocess.Popen(argv, env=os.environ | where | place, stdout=log, stderr=subprocess.STDOUT)


def logged(log: Path) -> list[str]:
    """The lines of the finished steps."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [line for line in lines if line.endswith("\n") and "tokens_per_s" in line]


def sent() -> int:
    """Bytes, by the first rank's card, with all headers."""
    counter = f"/sys/class/net/{CARDS[0]}/statistics/tx_bytes"
    return int(command(*inside(SPACES[0], "cat", counter)))


def check_machine() -> None:
    """Ends the program where namespaces cannot be made."""
    missing = [] if os.geteuid() == 0 else ["root: run it with sudo"]
    missing += [f"{tool}, of iproute2" for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        sys.exit(f"two network namespaces need {' and '.join(missing)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # by way of every `finally`


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", nargs="+", default=["1gbit", "100mbit"])
    parser.add_argument("--steps", type=int, default=21)
    parser.add_argument("--freeze-step", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    if options.repeats < 2 or not 1 < options.freeze_step < options.steps - 1:
        parser.error("percentiles need 2 repeats, and 2 steps before and after the freeze")
    check_machine()
    steps, freeze = options.steps, options.freeze_step
    with tempfile.TemporaryDirectory() as temporary:
        data = write_dataset(Path(temporary), (steps + 4) * 2 * SHAPE.seq)
        for rate in options.links:
            found: dict[tuple[str, str], list[float]] = defaultdict(list)
            with link(rate):
                for repeat in range(options.repeats):
                    for name in ("Adam", "OneBitAdam"):
                        seconds, sizes = train(name, steps, freeze, data, Path(temporary, f"{rate}-{name}-{repeat}"))
                        for unit, values in (("s a step", seconds), ("MB sent a step", sizes)):
                            found[f"{rate}: {name}", f"{unit}, on average"].append(mean(values))
                            if name == "OneBitAdam":
                                found[f"{rate}: {name}, exact", unit] += values[: freeze - 1]
                                found[f"{rate}: {name}, compressed", unit] += values[freeze - 1 :]
                            else:
                                found[f"{rate}: {name}", unit] += values
                    for unit, what in (("s a step", "time"), ("MB sent a step", "bytes")):
                        adam, mine = (
                            found[f"{rate}: {each}", f"{unit}, on average"] for each in ("Adam", "OneBitAdam")
                        )
                        found[f"{rate}: Adam / OneBitAdam, warm-up included", f"x, {what}"].append(adam[-1] / mine[-1])
            for unit in ("s a step", "MB sent a step"):
                adam = median(found[f"{rate}: Adam", unit])
                compressed = found[f"{rate}: OneBitAdam, compressed", unit]
                ratio = f"x, {'time' if unit.startswith('s') else 'bytes'}"
                found[f"{rate}: Adam / OneBitAdam, compressed", ratio] = [adam / each for each in compressed]
            for (case, unit), values in found.items():
                append_row("onebit_network", case, unit, values)


if __name__ == "__main__":
    main()
