"""The main table of docs/benchmarks.md on this machine, next to what is stated there: about ten minutes.

    python benchmarks/main_table.py [--minutes 10] [--repeats 2] [--threads N]

Cells of train_cpu.py, neox next to transformers in turns, eager ones first, as many as the minutes allow. Each row
shows how many times faster neox is here, and in the table of the processor that is most like this one by its flags; a
row that is further from it than the machines vary is marked. No rows are written.
"""

import argparse
import os
import re
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import median

from results import kind_of, machine
from train_cpu import SHAPES, take_cell, write_dataset

DOCS = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
TABLES = {"Zen 5": "## Training", "Zen 4": "### Two cores of Zen 4", "Zen 3": "### Two cores without AVX-512"}
"""By the kind of processor, the heading of its table."""
VARIES = 0.15
"""By how much of it a ratio may differ between two looks at a shared machine."""
ROW = re.compile(r"^\| (\S+), (fp32|bf16), (eager|compiled) \| [\d,]+ \| [\d,]+ \(([\d.]+)\) \|", re.MULTILINE)
Cell = tuple[str, str, str]


def stated(heading: str) -> dict[Cell, float]:
    """Of each cell in the first table after a heading of the docs, how many times faster neox is."""
    text = DOCS.read_text(encoding="utf-8").partition(f"\n{heading}\n")[2]
    return {(shape, precision, mode): float(times) for shape, precision, mode, times in ROW.findall(table_of(text))}


def table_of(text: str) -> str:
    """The first table that has such rows."""
    return next((part for part in text.split("\n\n") if ROW.search(part)), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    options.device, options.against, options.litgpt = "cpu", ["transformers"], None
    kind = kind_of(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    there, began, longest = stated(TABLES[kind]), time.monotonic(), 0.0
    print(f"{machine()}, {options.threads} threads; stated: two cores of {kind}\n")
    print(f"| shape | neox | transformers | stated for {kind} | GiB | |\n|---|---|---|---|---|---|")
    cells = [(shape, *form) for *form, shape in product(("fp32", "bf16"), ("eager", "compiled"), SHAPES)]
    with tempfile.TemporaryDirectory() as temporary:
        data = write_dataset(Path(temporary), 100_000)
        for cell in sorted(cells, key=lambda cell: cell[2], reverse=True):
            at = time.monotonic()
            if at + longest > began + 60 * options.minutes:
                print(f"| {', '.join(cell)} | not within {options.minutes:g} minutes | | {there.get(cell, '')} | | |")
                continue
            runs, rates = take_cell(cell, options, data, Path(temporary))
            longest = max(longest, time.monotonic() - at)
            ratios = [one / other for one, other in zip(rates["neox"], rates["transformers"], strict=True)]
            told, times = there.get(cell), median(ratios)
            speeds = f"{median(rates['neox']):,.0f} | {median(rates['transformers']):,.0f} ({times:.2f})"
            memory = " / ".join(f"{runs[name].memory_gib:.2f}" for name in ("neox", "transformers"))
            differs = f"differs: {times / told:.2f} of it" if told and abs(times / told - 1) > VARIES else ""
            print(f"| {', '.join(cell)} | {speeds} | {told or ''} | {memory} | {differs} |", flush=True)


if __name__ == "__main__":
    main()
