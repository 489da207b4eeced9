"""Tokens per second and peak memory of training on a CPU: neox next to transformers and to LitGPT's GPT class.

    python benchmarks/train_cpu.py [--repeats 3] [--steps 6] [--threads N] [--litgpt FOLDER]
        [--shapes 14m 70m 768] [--precisions fp32 bf16] [--modes eager compiled] [--against transformers litgpt bare]

A cell is a shape, a precision and a mode. In each repeat of a cell every contender trains once, one after the other,
each in a fresh process with the same number of threads; the first steps are left out. `neox` is the whole of
`neox train`: it reads a dataset through its loader, and has its engine and its log. The others are a plain loop over
random tokens: forward, backward, clipping at norm 1, torch's fused AdamW. `bare` is such a loop around our own model;
neox / bare tells what the trainer costs. The models are GPT-NeoX's: layernorm, rotary on a quarter of a head, parallel
residual, untied, 50304 words. bf16 is autocast, with weights in fp32. Rows are appended to benchmarks/results.csv.

LitGPT is no dependency; put it aside and name the folder:

    pip install --no-deps --target build/litgpt litgpt==0.5.13 lightning lightning-utilities pytorch-lightning \
        torchmetrics jsonargparse

A cell of one repeat takes about one minute eager, two compiled.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from attrs import frozen
from results import append_row

from neox_core.testing import build, load_only

VOCAB, SEQ, WARM_UP = 50304, 512, 3


@frozen
class Shape:
    """micro_batch: samples of SEQ tokens in a step, fewer for a larger model."""

    layers: int
    hidden: int
    heads: int
    micro_batch: int

    @property
    def tokens(self) -> int:
        return SEQ * self.micro_batch


SHAPES = {"14m": Shape(6, 128, 4, 4), "70m": Shape(6, 512, 8, 2), "768": Shape(12, 768, 12, 1)}
MICRO_BATCH, TOKENS = SHAPES["14m"].micro_batch, SHAPES["14m"].tokens


def config_of(shape: Shape) -> dict[str, Any]:
    """What of a config does not depend on where its data is, nor on the length of the run."""
    return {
        "num-layers": shape.layers,
        "hidden-size": shape.hidden,
        "num-attention-heads": shape.heads,
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
        "train_micro_batch_size_per_gpu": shape.micro_batch,
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


CONFIG = config_of(SHAPES["14m"])


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


def neox(shape: Shape, precision: str, mode: str, steps: int, data: Path, folder: Path, threads: int) -> dict[str, Any]:
    """Tokens/s and peak memory of `neox train`, as its own log has them."""
    folder.mkdir()
    config = config_of(shape) | {"data-path": str(data), "train-iters": WARM_UP + steps, "save": str(folder / "save")}
    config["compile"] = mode == "compiled"
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


def run(argv: list[str], threads: int, **env: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"OMP_NUM_THREADS": str(threads)} | env
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(argv)} failed:\n{done.stdout}{done.stderr}")
    return done


def transformers_loss(shape: Shape) -> tuple[Any, Callable[[Any, Any], Any]]:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    model = GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=VOCAB,
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=4 * shape.hidden,
            max_position_embeddings=SEQ,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
            use_parallel_residual=True,
            tie_word_embeddings=False,
            use_cache=False,
        )
    )
    return model, lambda model, tokens: model(tokens[:, :-1], labels=tokens[:, :-1]).loss


def litgpt_loss(shape: Shape) -> tuple[Any, Callable[[Any, Any], Any]]:
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.utils import chunked_cross_entropy

    model = GPT(
        Config(
            name="benchmark",
            block_size=SEQ,
            n_layer=shape.layers,
            n_embd=shape.hidden,
            n_head=shape.heads,
            vocab_size=VOCAB,
            padded_vocab_size=VOCAB,
            rotary_percentage=0.25,
            parallel_residual=True,
        )
    )
    # as its pretrain does
    return model, lambda model, tokens: chunked_cross_entropy(model(tokens[:, :-1]), tokens[:, 1:], chunk_size=0)


def bare_loss(shape: Shape) -> tuple[Any, Callable[[Any, Any], Any]]:
    import torch

    from neox_core.build.context import BuildContext
    from neox_core.build.model import build_model
    from neox_core.parallel.groups import Groups
    from neox_core.plan.resolve import prepare_run

    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "config.json"
        file.write_text(json.dumps(config_of(shape) | {"data-path": temporary, "train-iters": 1}))
        plan = prepare_run([file], start=False).plan
    context = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1234)
    return build_model(plan.model, VOCAB, context), lambda model, tokens: model(tokens[:, :-1], tokens[:, 1:])


LOOPS = {"transformers": transformers_loss, "litgpt": litgpt_loss, "bare": bare_loss}


def plain_loop(name: str, shape: Shape, precision: str, mode: str, steps: int) -> None:
    """Train one of LOOPS in this process; prints the median tokens/s and the peak memory."""
    import torch

    model, loss_of = LOOPS[name](shape)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    called = model
    if mode == "compiled" and name == "bare":
        from neox_core.build.model import compile_layers

        compile_layers(model)
    elif mode == "compiled":
        called = torch.compile(model)
    rates = []
    for _ in range(WARM_UP + steps):
        began = time.perf_counter()
        tokens = torch.randint(VOCAB, (shape.micro_batch, SEQ + 1))
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(called, tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        rates.append(shape.tokens / (time.perf_counter() - began))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"tokens/s": median(rates[WARM_UP:]), "GiB": peak}))


def other(name: str, cell: tuple[str, str, str], options: argparse.Namespace) -> dict[str, Any]:
    """A plain loop, which this file runs in a process of its own."""
    argv = [sys.executable, __file__, "--loop", name, *cell, "--steps", str(options.steps)]
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), options.litgpt if name == "litgpt" else None)))
    done = run(argv, options.threads, PYTHONPATH=path)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def contenders(options: argparse.Namespace) -> Iterator[str]:
    yield from (name for name in options.against if name != "litgpt" or options.litgpt)
    yield "neox"


def measure(cell: tuple[str, str, str], options: argparse.Namespace, data: Path, folder: Path) -> None:
    """All contenders in turn, `repeats` times, and the rows of the cell."""
    shape, precision, mode = cell
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders(options)}
    for repeat in range(options.repeats):
        for name, values in found.items():
            if name == "neox":
                place = folder / f"{'-'.join(cell)}-{repeat}"
                chosen = SHAPES[shape]
                values.append(neox(chosen, precision, mode, options.steps, data, place, options.threads))
            else:
                values.append(other(name, cell, options))
    case = f"{shape}, {precision}, {mode}, {options.threads} threads"
    for unit in ("tokens/s", "GiB"):
        for name, values in found.items():
            append_row("train_cpu", f"{case}: {name}", unit, [one[unit] for one in values])
            if name != "neox":
                pairs = zip(found["neox"], values, strict=True)
                ratios = [ours[unit] / theirs[unit] for ours, theirs in pairs]
                append_row("train_cpu", f"{case}: neox / {name}, {unit}", "times", ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--litgpt", help="folder that LitGPT is installed in; left out without it")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--modes", nargs="+", choices=["eager", "compiled"], default=["eager", "compiled"])
    parser.add_argument("--against", nargs="+", choices=list(LOOPS), default=list(LOOPS))
    parser.add_argument("--loop", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loop:
        name, shape, precision, mode = options.loop
        plain_loop(name, SHAPES[shape], precision, mode, options.steps)
        return
    with tempfile.TemporaryDirectory() as temporary:
        most = max(SHAPES[shape].tokens for shape in options.shapes)
        data = write_dataset(Path(temporary), (WARM_UP + options.steps + 2) * most)
        for cell in product(options.shapes, options.precisions, options.modes):
            measure(cell, options, data, Path(temporary))


if __name__ == "__main__":
    main()
