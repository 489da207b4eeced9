"""Two ranks against one process with as many threads: what tensor, data and pipeline parallelism cost on a CPU.

    python benchmarks/layouts_cpu.py [--repeats 5] [--shapes 14m 70m] [--layouts tp2 dp2 pp2] [--sequences 1]

Shapes as in benchmarks/train_cpu.py, trained by `neox train`, fp32, with 8 sequences of 512 tokens a step. One process
has 2 threads, each of two ranks has one. All layouts of a shape are started at once and take turns, see
benchmarks/turns.py. A layout's efficiency is its tokens/s over those of the one process in the same round. Rows are
appended to benchmarks/results.csv when a shape is done.

A pipeline has 8 micro-batches of one sequence, or of `--sequences`, where all others make as many passes of 8. It is
cut by `pipe-partition-method: time`, or by `time+head`, with which the stages share the output layer. Its limit is what
two ranks reach that lose nothing but the bubble, while the slowest stage takes the share of a micro-batch that the run
has measured: a step takes 8 times that share, and the rest once, of what two processors do that never wait.
"""

import argparse
import re
import tempfile
from pathlib import Path
from typing import Any

from attrs import evolve
from results import append_row
from train_cpu import SHAPES, WARM_UP, config_of, write_dataset
from turns import SETTLE, neox_train, take_turns

RANKS, BATCH = 2, 8
ALONE = "one process"
PIPELINE = {"num_gpus": RANKS, "pipe-parallel-size": 2, "pipe-partition-method": "time"}
LAYOUTS: dict[str, dict[str, Any]] = {
    ALONE: {"num_gpus": 1},
    "tp2": {"num_gpus": RANKS, "model-parallel-size": 2},
    "tp2, sequence parallel": {"num_gpus": RANKS, "model-parallel-size": 2, "sequence-parallel": True},
    "dp2": {"num_gpus": RANKS, "train_micro_batch_size_per_gpu": BATCH // RANKS},
    "pp2": PIPELINE,
    "pp2, shared head": PIPELINE | {"pipe-partition-method": "time+head"},
}


def measure(name: str, layouts: list[str], repeats: int, sequences: int, data: Path, folder: Path) -> None:
    """One process and `layouts` in turn, and the rows of a shape."""
    shape = evolve(SHAPES[name], micro_batch=BATCH)
    steps, name = max(1, shape.steps // sequences), name if sequences == 1 else f"{name}, {sequences} sequences"
    config = config_of(shape, WARM_UP + repeats * (SETTLE + steps) + 1, data) | {
        "gradient_accumulation_steps": sequences
    }
    pipeline = {"train_micro_batch_size_per_gpu": sequences, "gradient_accumulation_steps": BATCH}
    runs = {
        layout: neox_train(
            config | LAYOUTS[layout] | (pipeline if "pipe-parallel-size" in LAYOUTS[layout] else {}),
            folder / name / layout,
            {"OMP_NUM_THREADS": "2" if layout == ALONE else "1"},
        )
        for layout in (ALONE, *layouts)
    }
    rates = take_turns(runs, WARM_UP, repeats, steps, shape.tokens * sequences)
    for layout, values in rates.items():
        append_row("layouts_cpu", f"{name}, fp32: {layout}", "tokens/s", values)
        if layout != ALONE:
            shares = [100 * value / alone for value, alone in zip(values, rates[ALONE], strict=True)]
            append_row("layouts_cpu", f"{name}, fp32: {layout} / {ALONE}", "%", shares)
        if layout.startswith("pp2"):
            limit = limit_of((folder / name / layout / "output").read_text())
            append_row("layouts_cpu", f"{name}, fp32: {layout}, limit of bubble and slowest stage", "%", [limit])
            append_row(
                "layouts_cpu", f"{name}, fp32: {layout}, of its limit", "%", [100 * each / limit for each in shares]
            )


def limit_of(output: str) -> float:
    """The most that a pipeline of such stages reaches, in % of what its ranks would without waiting."""
    said = re.search(r"cut by time into stages of .*, ([\d.]+ %.*) of a micro-batch", output)
    if said is None:
        raise SystemExit("the run does not say how it was cut")
    slowest = max(float(each) for each in re.findall(r"([\d.]+) %", said[1])) / 100
    return 100 * BATCH / (RANKS * (BATCH * slowest + 1 - slowest))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["14m", "70m"])
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS)[1:], default=list(LAYOUTS)[1:])
    parser.add_argument("--sequences", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        data = write_dataset(Path(temporary), 100_000)
        for shape in options.shapes:
            measure(shape, options.layouts, options.repeats, options.sequences, data, Path(temporary))


if __name__ == "__main__":
    main()
