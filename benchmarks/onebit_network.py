"""1-bit Adam against Adam where the network is slow: two ranks, each in a network namespace of its own.

    sudo python benchmarks/onebit_network.py [--links 1gbit 100mbit] [--steps 24] [--freeze-step 6] [--repeats 3]

The namespaces are joined by a pair of virtual cards, both ends held to the rate of the link by `tc` (token bucket). In
each repeat every optimizer trains once, one after the other, in fresh processes: 14 M parameters, 512 tokens a rank and
step, fp32, one thread a rank. Counted are the seconds of a step (of the log, of all steps after the first), apart for
exact and compressed ones, those of all steps together, warm-up included, and the bytes that a card has sent in a step,
with all headers. Needs root, `ip` and `tc` (iproute2). Rows are appended to benchmarks/results.csv.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from results import append_row
from train_cpu import SEQ, SHAPES, config_of, write_dataset

from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import write_runfile

SPACES, CARDS, ADDRESSES = ("neox-a", "neox-b"), ("neox-va", "neox-vb"), ("10.77.0.1", "10.77.0.2")
PORT = 29611


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
    """Two namespaces with a link of this rate between them."""
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
        for space in SPACES:
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)


def optimizer(name: str, freeze_step: int) -> dict[str, Any]:
    params: dict[str, Any] = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8}
    if name == "OneBitAdam":
        params |= {"freeze_step": freeze_step, "cuda_aware": False, "comm_backend_name": "gloo"}
    return {"optimizer": {"type": name, "params": params}}


def train(name: str, steps: int, freeze_step: int, data: Path, folder: Path) -> tuple[list[float], int]:
    """(seconds of each step, bytes that the first rank's card has sent) of one run."""
    folder.mkdir()
    changed = {
        "data-path": str(data),
        "train-iters": steps,
        "num_gpus": 2,
        "train_micro_batch_size_per_gpu": 1,
        "no-save-optim": True,
        "save": str(folder / "save"),
    }
    config = config_of(SHAPES["14m"]) | changed | optimizer(name, freeze_step)
    if name == "OneBitAdam":
        del config["lr-decay-style"]
    file, runfile = folder / "config.json", folder / "run.json"
    file.write_text(json.dumps(config))
    write_runfile(prepare_run([file], machine=Machine(num_cuda=0, num_cores=2)).plan, runfile)
    before = sent()
    ranks = [start(rank, runfile) for rank in range(2)]
    said = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("\n".join(said))
    lines = [json.loads(line) for line in (folder / "save" / "metrics.jsonl").read_text().splitlines()]
    return [2 * SEQ / line["tokens_per_s"] for line in lines if "tokens_per_s" in line], sent() - before


def start(rank: int, runfile: Path) -> subprocess.Popen[str]:
    where = {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": CARDS[rank]}
    place = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    argv = inside(SPACES[rank], sys.executable, "-m", "neox_core.train.rank", str(runfile))
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(argv, env=os.environ | where | place, **output)


def sent() -> int:
    counter = f"/sys/class/net/{CARDS[0]}/statistics/tx_bytes"
    return int(command(*inside(SPACES[0], "cat", counter)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", nargs="+", default=["1gbit", "100mbit"])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--freeze-step", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.repeats < 2 or not 1 < options.freeze_step < options.steps - 1:
        parser.error("percentiles need 2 repeats, and 2 steps before and after the freeze")
    steps, freeze = options.steps, options.freeze_step
    with tempfile.TemporaryDirectory() as temporary:
        data = write_dataset(Path(temporary), (steps + 4) * 2 * SEQ)
        for rate in options.links:
            found: dict[tuple[str, str], list[float]] = defaultdict(list)
            with link(rate):
                for repeat in range(options.repeats):
                    whole = {}
                    for name in ("Adam", "OneBitAdam"):
                        folder = Path(temporary, f"{rate}-{name}-{repeat}")
                        seconds, moved = train(name, steps, freeze, data, folder)
                        whole[name] = sum(seconds[1:])
                        case = f"{rate}: {name}"
                        found[case, "MB sent a step"].append(moved / steps / 1e6)
                        found[case, "s a step, warm-up included"].append(whole[name] / (steps - 1))
                        if name == "OneBitAdam":
                            found[f"{case}, exact", "s a step"] += seconds[1:freeze]
                            found[f"{case}, compressed", "s a step"] += seconds[freeze:]
                        else:
                            found[case, "s a step"] += seconds[1:]
                    ratio = whole["Adam"] / whole["OneBitAdam"]
                    found[f"{rate}: OneBitAdam over Adam, warm-up included", "x"].append(ratio)
            for (case, unit), values in found.items():
                append_row("onebit_network", case, unit, values)


if __name__ == "__main__":
    main()
