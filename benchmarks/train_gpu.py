"""Tokens per second and MFU of a 1.3B shape on one GPU: the whole of `neox train` next to transformers in a plain loop.

    python benchmarks/train_gpu.py [--repeats 5] [--steps 20] [--micro-batch 4] [--modes eager compiled]

Model: 24 layers, hidden 2048, 16 heads, rotary on a quarter of a head, parallel residual, untied, 50304 words; bf16
autocast with weights in fp32, sequences of 2048 tokens, AdamW, clipping at norm 1. transformers attends by SDPA. Each
repeat runs both, one after the other, in fresh processes; the first steps are left out. MFU counts the operations of
`neox_core.model.shape.flops_per_token` against the best bf16 matrix product of this GPU, measured in the same run. Rows
are appended to benchmarks/results.csv.
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

from results import append_row
from train_cpu import Shape, config_of, run, write_dataset

VOCAB, SEQ, WARM_UP = 50304, 2048, 5
SIZE = Shape(24, 2048, 16, 1)
MATRIX, PRODUCTS = 8192, 50


def peak_flops() -> float:
    """Operations per second of a large bf16 product."""
    import torch

    left, right = (torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    rates = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(PRODUCTS):
            left @ right
        torch.cuda.synchronize()
        rates.append(PRODUCTS * 2 * MATRIX**3 / (time.perf_counter() - began))
    return max(rates[1:])


def flops_per_token() -> int:
    """As `neox_core.model.shape.flops_per_token`, whose formula it writes out for this shape."""
    weights = SIZE.layers * 12 * SIZE.hidden**2 + SIZE.hidden * VOCAB
    return 6 * weights + 12 * SIZE.layers * SIZE.hidden * SEQ


def neox(mode: str, options: argparse.Namespace, data: Path, folder: Path) -> dict[str, float]:
    folder.mkdir()
    config = config_of(SIZE) | {
        "seq-length": SEQ,
        "max-position-embeddings": SEQ,
        "train_micro_batch_size_per_gpu": options.micro_batch,
        "torch_autocast": {"enabled": True, "dtype": "bfloat16"},
        "compile": mode == "compiled",
        "device": "cuda",
        "data-path": str(data),
        "train-iters": WARM_UP + options.steps,
        "save": str(folder / "save"),
    }
    (folder / "config.json").write_text(json.dumps(config))
    run([sys.executable, "-m", "neox_core", "train", str(folder / "config.json")], threads=8)
    lines = [json.loads(line) for line in (folder / "save" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "tokens_per_s" in line][WARM_UP:]
    return {
        "tokens/s": median(line["tokens_per_s"] for line in steps),
        "GiB": max(line["memory_gib"] for line in steps),
    }


def plain_loop(mode: str, options: argparse.Namespace) -> None:
    """Train transformers' model in this process; prints the median tokens/s and the peak memory."""
    import torch
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        vocab_size=VOCAB,
        hidden_size=SIZE.hidden,
        num_hidden_layers=SIZE.layers,
        num_attention_heads=SIZE.heads,
        intermediate_size=4 * SIZE.hidden,
        max_position_embeddings=SEQ,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        use_parallel_residual=True,
        tie_word_embeddings=False,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = GPTNeoXForCausalLM(config).cuda().train()
    called: Any = torch.compile(model) if mode == "compiled" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rates = []
    for _ in range(WARM_UP + options.steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        tokens = torch.randint(VOCAB, (options.micro_batch, SEQ), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = called(tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        rates.append(options.micro_batch * SEQ / (time.perf_counter() - began))
    peak = torch.cuda.max_memory_allocated() / 2**30
    print(json.dumps({"tokens/s": median(rates[WARM_UP:]), "GiB": peak}))


def in_fresh_process(*arguments: str) -> Any:
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--modes", nargs="+", choices=["eager", "compiled"], default=["eager", "compiled"])
    parser.add_argument("--only", choices=["eager", "compiled", "peak"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only == "peak":
        print(json.dumps(peak_flops()))
        return
    if options.only:
        plain_loop(options.only, options)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = write_dataset(folder, (WARM_UP + options.steps + 2) * options.micro_batch * SEQ)
        sizes = ["--steps", str(options.steps), "--micro-batch", str(options.micro_batch)]
        for mode in options.modes:
            peaks, ours, theirs = [], [], []
            for repeat in range(options.repeats):
                peaks.append(in_fresh_process("--only", "peak"))
                theirs.append(in_fresh_process("--only", mode, *sizes))
                ours.append(neox(mode, options, data, folder / f"{mode}-{repeat}"))
            case = f"1.3b, bf16, {mode}, micro-batch {options.micro_batch}"
            append_row("train_gpu", f"{case}: bf16 product", "TFLOP/s", [peak / 1e12 for peak in peaks])
            for name, values in (("neox", ours), ("transformers", theirs)):
                for unit in ("tokens/s", "GiB"):
                    append_row("train_gpu", f"{case}: {name}", unit, [one[unit] for one in values])
                pairs = zip(values, peaks, strict=True)
                share = [100 * one["tokens/s"] * flops_per_token() / peak for one, peak in pairs]
                append_row("train_gpu", f"{case}: {name}", "% MFU", share)
            ratios = [one["tokens/s"] / other["tokens/s"] for one, other in zip(ours, theirs, strict=True)]
            append_row("train_gpu", f"{case}: neox / transformers", "times", ratios)


if __name__ == "__main__":
    main()
