"""The cross-entropy of 2048 tokens over 50304 words, forward and backward: our chunks next to torch's two forms.

    python benchmarks/loss_cpu.py [--repeats 7] [--threads N] [--forms plain "torch chunked" "neox by torch" neox]

plain: logits of the whole batch. torch chunked: `linear_cross_entropy` of torch 2.13 with its default options. neox by
torch: our chunks in operations of torch; neox: as a run computes them, by compiled code. Each repeat takes all forms in
turn. The share of the peak counts the operations of three products of 2048 x 128 x 50304, against the fastest product
of two matrices of 2048 x 2048 in fp32 that the same process saw before and after. Memory is what a process of its own
needs above its inputs. Rows go to benchmarks/results.csv.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from neox_gpt.loss import by_torch, cross_entropy
from neox_gpt.matmul import times_transposed
from results import append_row
from torch import Tensor
from torch.nn import functional as F

TOKENS, HIDDEN, VOCAB = 2048, 128, 50304
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def plain(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).float(), labels)


def torch_chunked(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions()
    return F.linear_cross_entropy(hidden, weight, labels, options=options)


FORMS: dict[str, Loss] = {
    "plain": plain,
    "torch chunked": torch_chunked,
    "neox by torch": by_torch,
    "neox": cross_entropy,
}
KEEPING = {"MALLOC_MMAP_THRESHOLD_": str(2**31 - 1), "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_MMAP_MAX_": "0"}
"""As the launcher sets it for ranks."""


def peak() -> float:
    """Operations a second of the faster of torch's two ways to multiply large matrices, the best of a few."""
    left, right = torch.randn(2048, 2048), torch.randn(2048, 2048)
    seconds = []
    for _ in range(3):
        for product in (times_transposed, torch.mm):
            began = time.perf_counter()
            product(left, right)
            seconds.append(time.perf_counter() - began)
    return 2 * 2048**3 / min(seconds)


def measure(form: Loss, precision: str) -> tuple[float, float]:
    """Milliseconds, and GiB of peak memory that were not there before."""
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    weight = torch.randn(VOCAB, HIDDEN).mul_(0.02).requires_grad_()
    labels = torch.randint(VOCAB, (TOKENS,))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        loss = form(hidden, weight, labels)
    loss.backward()
    took = time.perf_counter() - began
    return took * 1e3, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20


def in_fresh_process(name: str, precision: str, threads: int) -> tuple[float, float, float]:
    """Milliseconds, percent of the peak, GiB."""
    env = os.environ | {"OMP_NUM_THREADS": str(threads)} | KEEPING
    argv = [sys.executable, __file__, "--one", name, precision]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    took, share, memory = json.loads(done.stdout)
    return float(took), float(share), float(memory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, precision = options.one
        _, memory = measure(FORMS[name], precision)
        fastest = peak()
        took = min(measure(FORMS[name], precision)[0] for _ in range(2))  # the first call pays for what is kept
        share = 6 * TOKENS * HIDDEN * VOCAB / (took / 1e3) / max(fastest, peak()) * 100
        print(json.dumps([took, share, memory]))
        return
    for precision in ("fp32", "bf16"):
        seen: dict[str, list[tuple[float, float, float]]] = {name: [] for name in options.forms}
        for _ in range(options.repeats):
            for name, results in seen.items():
                results.append(in_fresh_process(name, precision, options.threads))
        for name, results in seen.items():
            case = f"50304 words, {precision}, {options.threads} threads: {name}"
            for unit, values in zip(("ms", "% of the peak", "GiB"), zip(*results, strict=True), strict=True):
                append_row("loss_cpu", case, unit, values)


if __name__ == "__main__":
    main()
