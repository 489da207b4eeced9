"""Two ranks against one process with as many threads: what tensor, data and pipeline parallelism cost on a CPU.

    python benchmarks/layouts_cpu.py [--repeats 5] [--shapes 14m 70m] [--layouts tp2 dp2 pp2]

Shapes as in benchmarks/train_cpu.py, trained by `neox train`, fp32, with 4 sequences of 512 tokens a step. One process
has 2 threads, each of two ranks has one. All layouts of a shape are started at once and take turns, see
benchmarks/turns.py. A layout's efficiency is its tokens/s over those of the one process in the same round. Rows are
appended to benchmarks/results.csv when a shape is done.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from attrs import evolve
from results import append_row
from train_cpu import SHAPES, WARM_UP, config_of, write_dataset
from turns import neox_train, take_turns

RANKS, BATCH = 2, 4
ALONE = "one process"
LAYOUTS: dict[str, dict[str, Any]] = {
    ALONE: {"num_gpus": 1},
    "tp2": {"num_gpus": RANKS, "model-parallel-size": 2},
    "tp2, sequence parallel": {"num_gpus": RANKS, "model-parallel-size": 2, "sequence-parallel": True},
    "dp2": {"num_gpus": RANKS, "train_micro_batch_size_per_gpu": BATCH // RANKS},
    "pp2": {
        "num_gpus": RANKS,
        "pipe-parallel-size": 2,
        "pipe-partition-method": "parameters",
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": BATCH,
    },
}


def measure(name: str, layouts: list[str], repeats: int, data: Path, folder: Path) -> None:
    """One process and `layouts` in turn, and the rows of a shape."""
    shape = evolve(SHAPES[name], micro_batch=BATCH)
    config = config_of(shape, WARM_UP + repeats * shape.steps + 1, data)
    runs = {
        layout: neox_train(
            config | LAYOUTS[layout], folder / name / layout, {"OMP_NUM_THREADS": "2" if layout == ALONE else "1"}
        )
        for layout in (ALONE, *layouts)
    }
    rates = take_turns(runs, WARM_UP, repeats, shape.steps, shape.tokens)
    for layout, values in rates.items():
        append_row("layouts_cpu", f"{name}, fp32: {layout}", "tokens/s", values)
        if layout != ALONE:
            shares = [100 * value / alone for value, alone in zip(values, rates[ALONE], strict=True)]
            append_row("layouts_cpu", f"{name}, fp32: {layout} / {ALONE}", "%", shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["14m", "70m"])
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS)[1:], default=list(LAYOUTS)[1:])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        data = write_dataset(Path(temporary), 100_000)
        for shape in options.shapes:
            measure(shape, options.layouts, options.repeats, data, Path(temporary))


if __name__ == "__main__":
    main()
