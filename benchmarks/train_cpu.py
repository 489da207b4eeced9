"""Tokens per second on a CPU: the whole of `neox train` next to transformers' GPTNeoXForCausalLM in a plain loop.

    python benchmarks/train_cpu.py [--repeats 5] [--steps 8] [--threads N]

Model: the shape of Pythia-14M (6 layers, hidden 128, 4 heads, 50304 words, untied, rotary on a quarter of a head,
parallel residual), 4 sequences of 512 tokens a step, AdamW, clipping at norm 1, the same number of threads. `neox`
reads a dataset through its loader, and has its engine and log; the plain loop makes a batch of random tokens. Each
repeat runs both, one after the other, in fresh processes; the first steps of each are left out. Rows are appended to
benchmarks/results.csv.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from results import append_row

from neox_core.testing import build, load_only

VOCAB, SEQ, MICRO_BATCH = 50304, 512, 4
TOKENS = SEQ * MICRO_BATCH
WARM_UP = 3
CONFIG = {
    "num-layers": 6,
    "hidden-size": 128,
    "num-attention-heads": 4,
    "seq-length": SEQ,
    "max-position-embeddings": SEQ,
    "padded-vocab-size": VOCAB,
    "norm": "layernorm",
    "activation": "gelu",
    "pos-emb": "rotary",
    "rotary-pct": 0.25,
    "gpt-j-residual": True,
    "no-weight-tying": True,
    "hidden-dropout": 0.0,
    "attention-dropout": 0.0,
    "train_micro_batch_size_per_gpu": MICRO_BATCH,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "Adam", "params": {"lr": 1.0e-3, "betas": [0.9, 0.999], "eps": 1.0e-8}},
    "lr-decay-style": "constant",
    "data-impl": "mmap",
    "split": "1,0,0",
    "eval-iters": 0,
    "log-interval": 1,
    "save-interval": 1_000_000,
    "num_gpus": 1,
    "device": "cpu",
}


def write_dataset(folder: Path, tokens: int) -> Path:
    """Random documents of 1000 ids each."""
    import numpy as np

    entry = load_only("neox-data-indexed").find("data backend", "mmap")
    writer = entry.load()(build(entry)).create(folder / "random", VOCAB)
    random = np.random.default_rng(0)
    for _ in range(tokens // 1000):
        writer.add_document(random.integers(0, VOCAB, 1000))
    writer.close()
    return folder / "random"


def neox(precision: str, steps: int, data: Path, folder: Path, threads: int) -> dict[str, float]:
    """Tokens/s and peak memory of `neox train`, as its own log has them."""
    config = CONFIG | {"data-path": str(data), "train-iters": WARM_UP + steps, "save": str(folder / "save")}
    if precision == "bf16":
        config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    run([sys.executable, "-m", "neox_core", "train", str(file)], threads)
    lines = [json.loads(line) for line in (folder / "save" / "metrics.jsonl").read_text().splitlines()]
    steps_seen = [line for line in lines if "tokens_per_s" in line][WARM_UP:]
    return {
        "tokens/s": median(line["tokens_per_s"] for line in steps_seen),
        "GiB": max(line["memory_gib"] for line in steps_seen),
    }


def transformers(precision: str, steps: int, threads: int) -> dict[str, float]:
    """The same of the plain loop, which this file runs in a process of its own."""
    done = run([sys.executable, __file__, "--plain", precision, "--steps", str(steps)], threads)
    return {name: float(value) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}


def run(argv: list[str], threads: int) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(argv)} failed:\n{done.stdout}{done.stderr}")
    return done


def plain_loop(precision: str, steps: int) -> None:
    """Train transformers' model and print the median tokens/s and the peak memory."""
    import torch
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    model = GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=VOCAB,
            hidden_size=128,
            num_hidden_layers=6,
            num_attention_heads=4,
            intermediate_size=512,
            max_position_embeddings=SEQ,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
            use_parallel_residual=True,
            tie_word_embeddings=False,
            use_cache=False,
        )
    )
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rates = []
    for _ in range(WARM_UP + steps):
        began = time.perf_counter()
        tokens = torch.randint(VOCAB, (MICRO_BATCH, SEQ))
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        rates.append(TOKENS / (time.perf_counter() - began))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"tokens/s": median(rates[WARM_UP:]), "GiB": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--plain", choices=["fp32", "bf16"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        plain_loop(options.plain, options.steps)
        return
    with tempfile.TemporaryDirectory() as temporary:
        data = write_dataset(Path(temporary), (WARM_UP + options.steps + 2) * TOKENS)
        for precision in ("fp32", "bf16"):
            ours, theirs = [], []
            for repeat in range(options.repeats):
                folder = Path(temporary) / f"{precision}-{repeat}"
                folder.mkdir()
                theirs.append(transformers(precision, options.steps, options.threads))
                ours.append(neox(precision, options.steps, data, folder, options.threads))
            case = f"pythia-14m, {precision}, {options.threads} threads"
            for unit in ("tokens/s", "GiB"):
                append_row("train_cpu", f"{case}: neox", unit, [one[unit] for one in ours])
                append_row("train_cpu", f"{case}: transformers", unit, [one[unit] for one in theirs])
            ratios = [one["tokens/s"] / other["tokens/s"] for one, other in zip(ours, theirs, strict=True)]
            append_row("train_cpu", f"{case}: neox / transformers", "times", ratios)


if __name__ == "__main__":
    main()
