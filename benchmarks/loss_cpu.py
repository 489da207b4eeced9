"""The cross-entropy of 2048 tokens over 50304 words, forward and backward: our chunks next to torch's two forms.

    python benchmarks/loss_cpu.py [--repeats 5] [--threads N]

plain: logits of the whole batch. torch chunked: `linear_cross_entropy` of torch 2.13 with its default options. Each
repeat takes all forms in turn. Memory is what a process of its own needs above its inputs. Rows go to
benchmarks/results.csv.
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
from neox_gpt.loss import cross_entropy
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


FORMS: dict[str, Loss] = {"plain": plain, "torch chunked": torch_chunked, "neox": cross_entropy}


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


def in_fresh_process(name: str, precision: str, threads: int) -> tuple[float, float]:
    env = os.environ | {"OMP_NUM_THREADS": str(threads)}
    argv = [sys.executable, __file__, "--one", name, precision]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    took, memory = json.loads(done.stdout)
    return float(took), float(memory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, precision = options.one
        _, memory = measure(FORMS[name], precision)
        took, _ = measure(FORMS[name], precision)  # the first call pays for what later steps find ready
        print(json.dumps([took, memory]))
        return
    for precision in ("fp32", "bf16"):
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name in FORMS}
        for _ in range(options.repeats):
            for name, results in seen.items():
                results.append(in_fresh_process(name, precision, options.threads))
        for name, results in seen.items():
            case = f"50304 words, {precision}, {options.threads} threads: {name}"
            append_row("loss_cpu", case, "ms", [took for took, _ in results])
            append_row("loss_cpu", case, "GiB", [memory for _, memory in results])


if __name__ == "__main__":
    main()
