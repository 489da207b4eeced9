"""The quickstart for 500 steps on two ranks: the validation loss of the 1-bit family next to Adam's.

    .venv/bin/neox data prepare stdlib --out data/stdlib
    .venv/bin/python benchmarks/onebit_loss.py [--optimizers Adam OneBitAdam ZeroOneAdam Lamb OneBitLamb]
        [--seeds 1234 1235] [--steps 500] [--freeze 100] [--params lr=0.01 compatibility=deepspeed]

Everything is configs/quickstart.yml's, but for the length, two ranks with half a batch each, the schedule, which is
WarmupDecayLR for all, and `--params`, settings of the optimizers. Variances freeze after `--freeze` steps. A run takes
about two minutes on two cores. Rows, with a run for each seed, are appended to benchmarks/results.csv.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from results import append_row

ROOT = Path(__file__).parents[1]
GLOO = {"cuda_aware": False, "comm_backend_name": "gloo"}


def settings(name: str, steps: int, freeze: int) -> dict[str, Any]:
    """What of an optimizer is its own.

    Intervals of ZeroOneAdam double when the learning rate, a straight line to 0, has halved: so the paper sets them.
    """
    rare = (steps - freeze) * 2 // 5
    return {
        "Adam": {},
        "OneBitAdam": {"freeze_step": freeze} | GLOO,
        "ZeroOneAdam": {"var_freeze_step": freeze, "local_step_scaler": rare, "local_step_clipper": 4} | GLOO,
        "Lamb": {},
        "OneBitLamb": {"freeze_step": freeze} | GLOO,
    }[name]


def loss(name: str, seed: int, steps: int, freeze: int, more: dict[str, Any], folder: Path) -> float:
    """The validation loss after the last step."""
    config = yaml.safe_load((ROOT / "configs/quickstart.yml").read_text())
    for key in ("lr-decay-style", "min-lr", "warmup", "sample-prompt"):
        del config[key]
    params = config["optimizer"]["params"] | settings(name, steps, freeze) | more
    config["optimizer"] = {"type": name, "params": params}
    config |= {
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": steps // 20, "total_num_steps": steps}},
        "train_micro_batch_size_per_gpu": config["train_micro_batch_size_per_gpu"] // 2,
        "num_gpus": 2,
        "device": "cpu",
        "train-iters": steps,
        "eval-interval": steps,
        "save-interval": steps,
        "save": str(folder / "save"),
        "seed": seed,
    }
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    argv = [sys.executable, "-m", "neox_core", "train", str(file)]
    done = subprocess.run(
        argv, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}")
    lines = [json.loads(line) for line in (folder / "save" / "metrics.jsonl").read_text().splitlines()]
    return float([line["valid_loss"] for line in lines if "valid_loss" in line][-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizers", nargs="+", default=["Adam", "OneBitAdam"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1234, 1235])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--freeze", type=int, default=100)
    parser.add_argument("--params", nargs="+", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    more = {name: yaml.safe_load(value) for name, value in (each.split("=") for each in options.params)}
    if len(options.seeds) < 2:
        parser.error("percentiles need 2 seeds")
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.optimizers:
            found = [
                loss(name, seed, options.steps, options.freeze, more, Path(temporary, f"{name}-{seed}"))
                for seed in options.seeds
            ]
            one_bit = "freeze" in str(settings(name, options.steps, options.freeze))
            case = f"{name}, frozen after {options.freeze}" if one_bit else name
            case = ", ".join([case, *(f"{key} {value}" for key, value in more.items())])
            append_row("onebit_loss", f"quickstart, 2 ranks, {options.steps} steps: {case}", "nats a token", found)


if __name__ == "__main__":
    main()
