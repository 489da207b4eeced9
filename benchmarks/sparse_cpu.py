"""Block-sparse attention with a window of fixed width next to dense causal attention, forward and backward.

    python benchmarks/sparse_cpu.py [--repeats 5] [--longest 32768]

Batch 1, 4 heads of 64, fp32; the layout `local` sees 512 tokens back, in blocks of 64 and of 16 tokens. dense: torch's
fused scaled_dot_product_attention. A length has a process of its own, in which all forms take turns, each repeat after
one that does not count. Memory is what a step takes at most above what was there before it, in turns of their own: the
time of these does not count, since they begin without memory to use again. Rows go to benchmarks/results.csv, with the
first length at which a form is faster than dense, and what the longest takes over the one of 1024.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from neox_gpt.api import LayoutShape
from neox_gpt.attention.scores import Request, attend
from neox_gpt.attention.sparse import BlockTable
from neox_sparse_attention.local import local
from neox_sparse_attention.settings import LocalSettings
from results import append_row
from torch import Tensor
from torch.nn import functional as F

HEADS, WIDTH, BACK = 4, 64, 512
BLOCKS = (64, 16)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
BASE = 1024

Measured = dict[str, dict[str, list[float]]]
"""By form and unit."""


def measure(seq: int, repeats: int) -> Measured:
    """Milliseconds and MiB of the forms at one length."""
    torch.manual_seed(0)
    inputs = [torch.randn(1, HEADS, seq, WIDTH, requires_grad=True) for _ in range(3)]
    forms: dict[str, Callable[[], Tensor]] = {
        "dense": lambda: F.scaled_dot_product_attention(*inputs, is_causal=True),
        **{f"blocks of {block}": sparse(inputs, seq, block) for block in BLOCKS},
    }
    found: Measured = {form: {"ms": [], "MiB": []} for form in forms}
    for repeat in range(repeats + 1):
        for form, attention in forms.items():
            began = time.perf_counter()
            step(attention, inputs)
            if repeat:
                found[form]["ms"].append((time.perf_counter() - began) * 1e3)
    for _ in range(repeats):
        for form, attention in forms.items():
            found[form]["MiB"].append(peak(lambda attention=attention: step(attention, inputs)))
    return found


def sparse(inputs: list[Tensor], seq: int, block: int) -> Callable[[], Tensor]:
    settings = LocalSettings(block=block, num_sliding_window_blocks=2 * (BACK // block) + 1)
    table = BlockTable(local(LayoutShape(seq // block, HEADS), settings), block)
    request = Request(WIDTH**-0.5, blocks=table)
    return lambda: attend(*inputs, request)


def step(attention: Callable[[], Tensor], inputs: list[Tensor]) -> None:
    for each in inputs:
        each.grad = None
    attention().sum().backward()


def peak(work: Callable[[], None]) -> float:
    """MiB of resident memory that `work` takes at most above what there is; Linux counts it, from a mark on."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before


def resident(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--longest", type=int, default=LENGTHS[-1])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.repeats)))
        return
    lengths = [each for each in LENGTHS if each <= arguments.longest]
    by_length: dict[int, Measured] = {}
    for seq in lengths:
        argv = [sys.executable, __file__, "--one", str(seq), "--repeats", str(arguments.repeats)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        by_length[seq] = json.loads(done.stdout)
        for form, units in by_length[seq].items():
            for unit, values in units.items():
                append_row("sparse_cpu", f"seq {seq}: {form}", unit, values)
    for form in by_length[lengths[0]]:
        time_of, memory_of = (
            {seq: median(found[form][unit]) for seq, found in by_length.items()} for unit in ("ms", "MiB")
        )
        for what, of in (("time", time_of), ("memory", memory_of)):
            if lengths[-1] > BASE:
                case = f"{what} of seq {lengths[-1]} over {BASE}: {form}"
                append_row("sparse_cpu", case, "times", [of[lengths[-1]] / of[BASE]])
        faster = [seq for seq in lengths if time_of[seq] < median(by_length[seq]["dense"]["ms"])]
        if faster:
            append_row("sparse_cpu", f"first faster than dense: {form}", "tokens", [faster[0]])


if __name__ == "__main__":
    main()
