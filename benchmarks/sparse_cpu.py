"""Block-sparse attention with a window of fixed width next to dense causal attention, forward and backward.

    python benchmarks/sparse_cpu.py [--repeats 5] [--longest 32768]

Batch 1, 4 heads of 64, fp32; the layout `local` with blocks of 64 tokens sees 512 tokens back. dense: torch's fused
scaled_dot_product_attention. Each repeat takes both in turn, at every length. Memory is what a process of its own needs
above its inputs. Rows go to benchmarks/results.csv.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import torch
from neox_sparse_attention.local import local
from neox_sparse_attention.settings import LocalSettings
from results import append_row
from torch.nn import functional as F

from neox_core.contracts import LayoutShape
from neox_core.model.scores import Request, attend
from neox_core.model.sparse import BlockTable

HEADS, WIDTH, BLOCK, BACK = 4, 64, 64, 8
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)


def measure(form: str, seq: int, rounds: int) -> tuple[float, float]:
    """Median milliseconds of some rounds, and MiB of peak memory that were not there before."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, HEADS, seq, WIDTH, requires_grad=True) for _ in range(3))
    settings = LocalSettings(block=BLOCK, num_sliding_window_blocks=2 * BACK + 1)
    table = BlockTable(local(LayoutShape(seq // BLOCK, HEADS), settings), BLOCK)
    request = Request(WIDTH**-0.5, blocks=table)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        if form == "sparse":
            out = attend(query, key, value, request)
        else:
            out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out.sum().backward()
        times.append((time.perf_counter() - began) * 1e3)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return sorted(times)[len(times) // 2], peak


def in_fresh_process(form: str, seq: int) -> tuple[float, float]:
    rounds = 3 if seq > 8192 and form == "dense" else 5
    argv = [sys.executable, __file__, "--one", form, str(seq), str(rounds)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    took, peak = json.loads(done.stdout)
    return took, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--longest", type=int, default=LENGTHS[-1])
    parser.add_argument("--one", nargs=3)
    arguments = parser.parse_args()
    if arguments.one:
        form, seq, rounds = arguments.one
        print(json.dumps(measure(form, int(seq), int(rounds))))
        return
    for seq in (each for each in LENGTHS if each <= arguments.longest):
        found: dict[str, list[tuple[float, float]]] = {"dense": [], "sparse": []}
        for _ in range(arguments.repeats):
            for form, measured in found.items():
                measured.append(in_fresh_process(form, seq))
        for form, measured in found.items():
            append_row("sparse_cpu", f"seq {seq}: {form}", "ms", [took for took, _ in measured])
            append_row("sparse_cpu", f"seq {seq}: {form}", "MiB", [peak for _, peak in measured])


if __name__ == "__main__":
    main()
