"""Two ranks against one process with as many threads: what tensor, data and pipeline parallelism cost on a CPU.

    python benchmarks/layouts_cpu.py [--repeats 5] [--steps 8] [--layouts tp2 dp2 pp2]

Each repeat trains the shape of benchmarks/train_cpu.py with `neox train` once in every layout, one after the other, in
fresh processes: the same 4 sequences of 512 tokens a step, fp32. One process has 2 threads, each of two ranks has one.
A layout's efficiency is its tokens/s over those of the one process in the same repeat. Rows are appended to
benchmarks/results.csv.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from results import append_row
from train_cpu import CONFIG, MICRO_BATCH, TOKENS, WARM_UP, run, write_dataset

RANKS = 2
LAYOUTS: dict[str, dict[str, Any]] = {
    "one process": {"num_gpus": 1},
    "tp2": {"num_gpus": RANKS, "model-parallel-size": 2},
    "tp2, sequence parallel": {"num_gpus": RANKS, "model-parallel-size": 2, "sequence-parallel": True},
    "dp2": {"num_gpus": RANKS, "train_micro_batch_size_per_gpu": MICRO_BATCH // 2},
    "pp2": {
        "num_gpus": RANKS,
        "pipe-parallel-size": 2,
        "pipe-partition-method": "parameters",
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": MICRO_BATCH,
    },
}


def tokens_per_s(layout: str, steps: int, data: Path, folder: Path) -> float:
    """The median of the steps after the first ones, as the log of the run has it."""
    folder.mkdir()
    config = CONFIG | LAYOUTS[layout] | {"data-path": str(data), "train-iters": WARM_UP + steps}
    file = folder / "config.json"
    file.write_text(json.dumps(config | {"save": str(folder / "save")}))
    run([sys.executable, "-m", "neox_core", "train", str(file)], threads=RANKS)
    lines = [json.loads(line) for line in (folder / "save" / "metrics.jsonl").read_text().splitlines()]
    return median([line["tokens_per_s"] for line in lines if "tokens_per_s" in line][WARM_UP:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS)[1:], default=list(LAYOUTS)[1:])
    options = parser.parse_args()
    wanted = ["one process", *options.layouts]
    rates: dict[str, list[float]] = {layout: [] for layout in wanted}
    with tempfile.TemporaryDirectory() as temporary:
        data = write_dataset(Path(temporary), (WARM_UP + options.steps + 2) * TOKENS)
        for repeat in range(options.repeats):
            for index, layout in enumerate(wanted):
                folder = Path(temporary) / f"{repeat}-{index}"
                rates[layout].append(tokens_per_s(layout, options.steps, data, folder))
    for layout, values in rates.items():
        append_row("layouts_cpu", f"pythia-14m, fp32: {layout}", "tokens/s", values)
        if layout != "one process":
            ratios = [value / alone for value, alone in zip(values, rates["one process"], strict=True)]
            append_row("layouts_cpu", f"pythia-14m, fp32: {layout} / one process", "times", ratios)


if __name__ == "__main__":
    main()
