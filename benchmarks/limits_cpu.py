"""How much faster than transformers a trainer can be on this machine: the floor of a step, next to rows of train_cpu.

    python benchmarks/limits_cpu.py [--repeats 9] [--threads N]

The floor of a step is the time of its products of matrices at the highest rate that this machine reaches with any, and
of AdamW's passes over memory at the speed of a copy: nothing else of the step takes any time. Its products are those of
forward and backward, in attention of what a token sees alone. The rate is the highest of torch's two ways to multiply,
over several shapes, the best of the repeats, by the processor time of one thread, times the threads: other work on the
machine lowers it little. The ceiling is the time of a step of transformers over the floor: what a trainer cannot
exceed. Times of steps are those of the newest rows of train_cpu of this machine. Prints a table for docs/benchmarks.md;
rates and ceilings go to benchmarks/results.csv.
"""

import argparse
import csv
import os
import time
from collections.abc import Callable, Iterator
from itertools import product

import torch
from neox_gpt.matmul import times_transposed
from results import FILE, append_row, machine
from train_cpu import SHAPES, VOCAB, Shape

PRODUCTS = [(2048, 2048, 2048), (1024, 1024, 4096), (2048, 512, 2048), (1024, 4096, 4096)]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
ADAM_BYTES = 28  # of each parameter: itself, its gradient and both moments read, and all but the gradient written


def weights(shape: Shape) -> int:
    """Of the layers, and of one of the two tables."""
    return shape.layers * 12 * shape.hidden**2 + VOCAB * shape.hidden


def operations(shape: Shape) -> float:
    """Of the products of a step."""
    attention = 12 * shape.layers * shape.hidden * (shape.seq + 1) / 2
    return shape.tokens * (6 * weights(shape) + attention)


def seconds(act: Callable[[], object], repeats: int) -> float:
    """Processor time of the fastest."""
    took = []
    for _ in range(repeats + 1):
        began = time.process_time()
        act()
        took.append(time.process_time() - began)
    return min(took[1:])


def rates(dtype: torch.dtype, repeats: int) -> Iterator[float]:
    """Operations a second of each product, by one thread."""
    for rows, inner, columns in PRODUCTS:
        left, right = torch.randn(rows, inner).to(dtype), torch.randn(columns, inner).to(dtype)
        for act in (lambda: times_transposed(left, right), lambda: torch.mm(left, right.T)):  # noqa: B023
            yield 2 * rows * inner * columns / seconds(act, repeats)


def newest(case: str, unit: str) -> float | None:
    """The median of the newest row of train_cpu, of this machine."""
    with FILE.open(newline="", encoding="utf-8") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["benchmark"], row["case"], row["unit"]) == ("train_cpu", case, unit)
        ]
    rows = [row for row in rows if row["machine"] == machine()]
    return float(rows[-1]["median"]) if rows else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    source, target = torch.ones(100_000_000), torch.zeros(100_000_000)
    copied = options.threads * 8e8 / seconds(lambda: target.copy_(source), options.repeats)
    append_row("limits_cpu", f"a copy, {options.threads} threads", "GB/s", [copied / 1e9])
    peaks = {}
    for precision, dtype in DTYPES.items():
        peaks[precision] = options.threads * max(rates(dtype, options.repeats))
        append_row(
            "limits_cpu", f"products, {precision}, {options.threads} threads", "GFLOP/s", [peaks[precision] / 1e9]
        )
    lines = []
    for name, precision, mode in product(SHAPES, DTYPES, ("eager", "compiled")):
        shape, cell = SHAPES[name], f"{name}, {precision}, {mode}"
        case = f"{cell}, {options.threads} threads"
        parameters = weights(shape) + VOCAB * shape.hidden
        floor = operations(shape) / peaks[precision] + ADAM_BYTES * parameters / copied
        theirs, ours = (newest(f"{case}: {trainer}", "tokens/s") for trainer in ("transformers", "neox"))
        ratio = newest(f"{case}: neox / transformers, tokens/s", "times")
        if theirs is None or ours is None or ratio is None:
            continue
        ceiling = shape.tokens / theirs / floor
        append_row("limits_cpu", f"{case}: ceiling", "times", [ceiling])
        steps = " | ".join(f"{took:.2f} s" for took in (floor, shape.tokens / ours, shape.tokens / theirs))
        lines.append(f"| {cell} | {operations(shape) / 1e9:.0f} GFLOP | {steps} | {ceiling:.2f} | {ratio:.2f} |")
    print("| shape | products | floor of a step | neox | transformers | ceiling | neox / transformers |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
