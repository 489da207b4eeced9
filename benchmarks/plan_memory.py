"""What `neox plan` says that the fullest rank holds, next to what its process took: `python benchmarks/plan_memory.py`.

30 short runs on a CPU: shapes x engines x ZeRO x tensor and pipeline parallelism x recomputation x precision.
Measured is the peak of the fullest rank's resident memory, less that of a run of a tiny model in the same layout
(what Python and its libraries take), plus what is told of the tiny model. Each is one run. With --write, the ratios
become a row of benchmarks/results.csv.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import append_row
from train_cpu import write_dataset

from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import RunPlan, write_runfile

STEPS = 3
GIVE_BACK = {f"MALLOC_{name}_": str(2**16) for name in ("MMAP_THRESHOLD", "TOP_PAD", "TRIM_THRESHOLD")}
GIVE_BACK |= {"MALLOC_MMAP_MAX_": str(10**8)}
"""Freed memory goes back to the system at once, so that the peak is of what was in use. `neox train` keeps it."""
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"num-layers": 2, "hidden-size": 64, "num-attention-heads": 4, "seq-length": 64, "padded-vocab-size": 512}
    | {"train_micro_batch_size_per_gpu": 1},
    "512x8": {"num-layers": 8, "hidden-size": 512, "num-attention-heads": 8, "seq-length": 512}
    | {"train_micro_batch_size_per_gpu": 4},
    "768x6": {"num-layers": 6, "hidden-size": 768, "num-attention-heads": 12, "seq-length": 256}
    | {"train_micro_batch_size_per_gpu": 8},
    "1024x4": {"num-layers": 4, "hidden-size": 1024, "num-attention-heads": 16, "seq-length": 512}
    | {"train_micro_batch_size_per_gpu": 2},
    "gated 512x8": {"num-layers": 8, "hidden-size": 512, "num-attention-heads": 8, "num-kv-heads": 2}
    | {"seq-length": 512, "train_micro_batch_size_per_gpu": 4, "activation": "swiglu", "norm": "rmsnorm"}
    | {"intermediate-size": 1408, "use-bias-in-attn-linear": False, "use-bias-in-mlp": False},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "plain": {"engine": "plain"},
    "ZeRO 1": {"num_gpus": 2, "zero_optimization": {"stage": 1}},
    "ZeRO 2": {"num_gpus": 2, "zero_optimization": {"stage": 2}},
    "ZeRO 3": {"num_gpus": 2, "zero_optimization": {"stage": 3}},
    "tensor 2": {"num_gpus": 2, "model-parallel-size": 2},
    "pipeline 2": {"num_gpus": 2, "pipe-parallel-size": 2, "gradient_accumulation_steps": 4},
}
FORMS: dict[str, dict[str, Any]] = {
    "": {},
    "bf16": {"bf16": {"enabled": True}},
    "recomputed": {"checkpoint-activations": True},
    "bf16, recomputed": {"bf16": {"enabled": True}, "checkpoint-activations": True},
}
CASES = (
    *((shape, "plain", form) for form in ("", "recomputed") for shape in list(SHAPES)[1:]),
    *((shape, "one rank", "bf16") for shape in list(SHAPES)[1:]),
    ("512x8", "ZeRO 1", ""),
    ("1024x4", "ZeRO 1", ""),
    ("512x8", "ZeRO 1", "bf16"),
    ("768x6", "ZeRO 1", "bf16"),
    ("1024x4", "ZeRO 1", "bf16, recomputed"),
    ("512x8", "ZeRO 2", ""),
    ("768x6", "ZeRO 2", "bf16"),
    ("512x8", "ZeRO 3", ""),
    ("1024x4", "ZeRO 3", "bf16"),
    *((shape, "tensor 2", "") for shape in list(SHAPES)[1:]),
    ("512x8", "tensor 2", "bf16"),
    ("512x8", "tensor 2", "recomputed"),
    ("768x6", "pipeline 2", ""),
    ("512x8", "pipeline 2", ""),
    ("1024x4", "pipeline 2", ""),
)
COMMON: dict[str, Any] = {
    "padded-vocab-size": 8192,
    "pos-emb": "rotary",
    "gpt-j-residual": True,
    "no-weight-tying": True,
    "hidden-dropout": 0.0,
    "attention-dropout": 0.0,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-4}},
    "lr-decay-style": "constant",
    "data-impl": "mmap",
    "split": "1,0,0",
    "train-iters": STEPS,
    "eval-iters": 0,
    "log-interval": 1,
    "device": "cpu",
}


def config_of(shape: str, layout: str, form: str, data: Path) -> dict[str, Any]:
    config = COMMON | SHAPES[shape] | LAYOUTS[layout] | FORMS[form] | {"data-path": str(data)}
    return config | {"max-position-embeddings": config["seq-length"]}


def told(config: dict[str, Any], folder: Path) -> tuple[int, RunPlan]:
    """(bytes of the fullest rank, by the closed forms; the plan of the run)."""
    (folder / "c.json").write_text(json.dumps(config))
    resolved = prepare_run([folder / "c.json"], catalog=load_plugins(), start=False)
    assert resolved.memory is not None
    return resolved.memory.total, resolved.plan


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def taken(plan: RunPlan, folder: Path) -> int:
    """Bytes at the peak of the fullest process of a run."""
    write_runfile(plan, folder / "run.json")
    env = os.environ | {"WORLD_SIZE": str(plan.cluster.world_size), "MASTER_ADDR": "localhost", "DS_ACCELERATOR": "cpu"}
    env |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": str(2 // plan.cluster.world_size)} | GIVE_BACK
    command, highest = [sys.executable, "-P", "-m", "neox_core.run.rank", str(folder / "run.json")], 0
    with (folder / "log").open("wb") as log:
        ranks = [
            subprocess.Popen(
                command, env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, cwd=folder, stdout=log, stderr=log
            )
            for rank in range(plan.cluster.world_size)
        ]
        while any(rank.poll() is None for rank in ranks):
            highest = max(highest, *(_peak(rank.pid) for rank in ranks))
            time.sleep(0.05)
    if any(rank.returncode for rank in ranks):
        raise SystemExit((folder / "log").read_text())
    return highest


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    options = parser.parse_args()
    bases: dict[tuple[str, str], int] = {}
    ratios = []
    print(f"{'run':<38} {'measured':>9} {'told':>9} {'error':>8}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        large, small = write_dataset(folder, 200_000, 8192), write_dataset(folder / "small", 20_000, 512)
        for shape, layout, form in CASES:
            case = ", ".join(part for part in (shape, layout, form) if part)
            if options.only not in case:
                continue
            if (layout, form) not in bases:
                expected, plan = told(config_of("tiny", layout, form, small), folder)
                bases[layout, form] = taken(plan, folder) - expected
            expected, plan = told(config_of(shape, layout, form, large), folder)
            measured = taken(plan, folder) - bases[layout, form]
            ratios.append(100 * expected / measured)
            print(
                f"{case:<38} {measured / 2**20:>5,.0f} MiB {expected / 2**20:>5,.0f} MiB {ratios[-1] - 100:>+6.1f} %",
                flush=True,
            )
    within = sum(abs(ratio - 100) <= 10 for ratio in ratios)
    print(f"{within} of {len(ratios)} within 10 %")
    if options.write:
        append_row("plan_memory", f"{len(ratios)} runs: told / measured", "%", ratios)
        append_row("plan_memory", f"of {len(ratios)} runs, within 10 %", "runs", [within])


if __name__ == "__main__":
    main()
