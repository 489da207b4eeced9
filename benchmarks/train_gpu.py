"""Tokens per second and MFU of a 1.3B shape on one GPU: the whole of `neox train` next to transformers in a plain loop.

    python benchmarks/train_gpu.py [--repeats 5] [--micro-batch 4] [--modes eager compiled] [--tiny]

Model: 24 layers, hidden 2048, 16 heads, rotary on a quarter of a head, parallel residual, untied, 50304 words; bf16
autocast with weights in fp32, sequences of 2048 tokens, AdamW, clipping at norm 1. transformers attends by SDPA. Each
repeat runs both, one after the other, in fresh processes, since two such models need not fit side by side; the first
steps are left out. MFU counts the operations of `neox_gpt.shape.flops_per_token` against the best bf16 matrix
product of this GPU, measured in the same run. Rows are appended to benchmarks/results.csv.

The three shapes of benchmarks/train_cpu.py, LitGPT among their contenders, are measured on a GPU by that script with
`--device cuda`. `--tiny` tries this one on a CPU, with a model of no interest, and appends nothing.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from attrs import evolve
from neox_gpt.shape import ModelShape, flops_per_token
from results import append_row
from train_cpu import VOCAB, Shape, config_of, plain_loop, write_dataset
from turns import neox_train

WARM_UP = 5
SHAPE = Shape(24, 2048, 16, 4, steps=20, seq=2048)
TINY = Shape(2, 64, 2, 1, steps=2, seq=64)
MATRIX, PRODUCTS = 8192, 50


def peak_flops(device: str) -> float:
    """Operations per second of a large bf16 product."""
    import torch

    size, wait = (MATRIX, torch.cuda.synchronize) if device == "cuda" else (MATRIX // 32, time.process_time)
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    rates = []
    for _ in range(5):
        wait()
        began = time.perf_counter()
        for _ in range(PRODUCTS):
            left @ right
        wait()
        rates.append(PRODUCTS * 2 * size**3 / (time.perf_counter() - began))
    return max(rates[1:])


def neox(mode: str, shape: Shape, device: str, data: Path, folder: Path) -> dict[str, float]:
    steps = WARM_UP + shape.steps
    config = config_of(shape, steps, data, device) | {
        "torch_autocast": {"enabled": True, "dtype": "bfloat16"},
        "compile": mode == "compiled",
    }
    run = neox_train(config, folder, {})
    try:
        run.wait(steps)
    finally:
        run.end()  # the checkpoint that follows is of no interest
    return result(run.steps)


def transformers(mode: str, shape: str, micro_batch: int) -> dict[str, float]:
    lines = in_fresh_process("--only", mode, *([shape] if shape else []), "--micro-batch", str(micro_batch))
    return result(lines)


def result(steps: list[dict[str, Any]]) -> dict[str, float]:
    return {
        "tokens/s": median(step["tokens_per_s"] for step in steps[WARM_UP:]),
        "GiB": max(step["memory_gib"] for step in steps),
    }


def in_fresh_process(*arguments: str) -> list[Any]:
    """The lines that it prints."""
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "["))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--micro-batch", type=int, default=SHAPE.micro_batch)
    parser.add_argument("--modes", nargs="+", choices=["eager", "compiled"], default=["eager", "compiled"])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", choices=["eager", "compiled", "peak"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    device, shape = ("cpu", TINY) if options.tiny else ("cuda", evolve(SHAPE, micro_batch=options.micro_batch))
    if options.only == "peak":
        print(json.dumps([peak_flops(device)]))
        return
    if options.only:
        plain_loop("transformers", shape, "bf16", options.only, device, WARM_UP + shape.steps)
        return
    flops = flops_per_token(
        ModelShape(shape.layers, shape.hidden, shape.heads, 4 * shape.hidden, shape.seq, shape.seq, VOCAB), shape.seq
    )
    tiny = "--tiny" if options.tiny else ""
    row = print if options.tiny else append_row
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = write_dataset(folder, 1_000_000)
        for mode in options.modes:
            peaks, ours, theirs = [], [], []
            for repeat in range(options.repeats):
                peaks.append(in_fresh_process("--only", "peak", *filter(None, [tiny]))[-1][0])
                theirs.append(transformers(mode, tiny, options.micro_batch))
                ours.append(neox(mode, shape, device, data, folder / f"{mode}-{repeat}"))
            case = f"1.3b, bf16, {mode}, micro-batch {options.micro_batch}"
            row("train_gpu", f"{case}: bf16 product", "TFLOP/s", [peak / 1e12 for peak in peaks])
            for name, values in (("neox", ours), ("transformers", theirs)):
                for unit in ("tokens/s", "GiB"):
                    row("train_gpu", f"{case}: {name}", unit, [one[unit] for one in values])
                pairs = zip(values, peaks, strict=True)
                share = [100 * one["tokens/s"] * flops / peak for one, peak in pairs]
                row("train_gpu", f"{case}: {name}", "% MFU", share)
            ratios = [one["tokens/s"] / other["tokens/s"] for one, other in zip(ours, theirs, strict=True)]
            row("train_gpu", f"{case}: neox / transformers", "times", ratios)


if __name__ == "__main__":
    main()
