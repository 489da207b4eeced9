"""Tokens per second and peak memory of training: neox next to transformers and to LitGPT's GPT class.

    python benchmarks/train_cpu.py [--repeats 5] [--threads N] [--device cpu] [--litgpt FOLDER]
        [--shapes 14m 70m 768] [--precisions fp32 bf16] [--modes eager compiled] [--against transformers litgpt bare]

A cell is a shape, a precision and a mode. All contenders of a cell start at once, each a process with the same number
of threads, and hold still after their first steps. Then they take turns: one goes on for a few steps while the others
are stopped, `repeats` times round. A turn is timed from outside, from the line that tells of its first step, which does
not count, to that of its last. `neox` is the whole of `neox train`: it reads a dataset through its loader, and has its
engine and its log. The others are a plain loop over random tokens: forward, backward, clipping at norm 1, torch's fused
AdamW. `bare` is such a loop around our own model, with the memory allocator set as neox's launcher sets it for ranks;
neox / bare tells what the trainer costs. The models are GPT-NeoX's: layernorm, rotary on a quarter of a head, parallel
residual, untied, 50304 words. bf16 is autocast, with weights in fp32. Rows are appended to benchmarks/results.csv when
a cell is done, so cells can be measured one by one.

LitGPT is no dependency; put it aside and name the folder:

    pip install --no-deps --target build/litgpt litgpt==0.5.13 lightning lightning-utilities pytorch-lightning \
        torchmetrics jsonargparse

With `--device cuda` the same on a GPU, where the memory is that of tensors.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from attrs import frozen
from neox_author.testing import build, load_only
from results import append_row
from turns import SETTLE, Contender, neox_train, take_turns

VOCAB, WARM_UP = 50304, 3
KEEPING = {"MALLOC_MMAP_THRESHOLD_": str(2**20), "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
"""As in neox_launchers.environment: freed memory is kept for the next step. In no other contender's environment."""


@frozen
class Shape:
    """micro_batch: samples of `seq` tokens in a step, fewer for a larger model. steps: of a turn."""

    layers: int
    hidden: int
    heads: int
    micro_batch: int
    steps: int
    seq: int = 512

    @property
    def tokens(self) -> int:
        return self.seq * self.micro_batch


SHAPES = {"14m": Shape(6, 128, 4, 4, 4), "70m": Shape(6, 512, 8, 2, 3), "768": Shape(12, 768, 12, 1, 2)}


def config_of(shape: Shape, steps: int, data: Path, device: str = "cpu") -> dict[str, Any]:
    """The config of a run that reads `data` for `steps` steps at most."""
    return {
        "num-layers": shape.layers,
        "hidden-size": shape.hidden,
        "num-attention-heads": shape.heads,
        "seq-length": shape.seq,
        "max-position-embeddings": shape.seq,
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
        "data-path": str(data),
        "split": "1,0,0",
        "train-iters": steps,
        "eval-iters": 0,
        "log-interval": 1,
        "save-interval": 1_000_000,
        "num_gpus": 1,
        "device": device,
    }


def write_dataset(folder: Path, tokens: int, vocab: int = VOCAB) -> Path:
    """Random documents of 1000 ids each, below `vocab`."""
    import numpy as np

    entry = load_only("neox-data-indexed").find("data backend", "mmap")
    writer = entry.load()(build(entry)).create(folder / "random", vocab)
    random = np.random.default_rng(0)
    for _ in range(tokens // 1000 + 1):
        writer.add_document(random.integers(0, vocab, 1000))
    writer.close()
    return folder / "random"


def transformers_loss(shape: Shape, device: str) -> tuple[Any, Callable[[Any, Any], Any]]:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    model = GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=VOCAB,
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=4 * shape.hidden,
            max_position_embeddings=shape.seq,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
            use_parallel_residual=True,
            tie_word_embeddings=False,
            use_cache=False,
            attn_implementation="sdpa",
        )
    )
    return model.to(device), lambda model, tokens: model(tokens[:, :-1], labels=tokens[:, :-1]).loss


def litgpt_loss(shape: Shape, device: str) -> tuple[Any, Callable[[Any, Any], Any]]:
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.utils import chunked_cross_entropy

    model = GPT(
        Config(
            name="benchmark",
            block_size=shape.seq,
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
    loss = lambda model, tokens: chunked_cross_entropy(model(tokens[:, :-1]), tokens[:, 1:], chunk_size=0)  # noqa: E731
    return model.to(device), loss


def bare_loss(shape: Shape, device: str, *, compiled: bool = False) -> tuple[Any, Callable[[Any, Any], Any]]:
    import torch
    from neox_gpt.build import build_model

    from neox_core.parallel.context import BuildContext
    from neox_core.parallel.groups import Groups
    from neox_core.plan.resolve import prepare_run

    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "config.json"
        file.write_text(json.dumps(config_of(shape, 1, Path(temporary)) | {"compile": compiled}))
        plan = prepare_run([file], start=False).plan
    context = BuildContext(torch.device(device), torch.float32, Groups(None, None, 0, 1), seed=1234)
    return build_model(plan.model, VOCAB, context), lambda model, tokens: model.loss(tokens[:, :-1], tokens[:, 1:])


LOOPS = {"transformers": transformers_loss, "litgpt": litgpt_loss, "bare": bare_loss}


def plain_loop(name: str, shape: Shape, precision: str, mode: str, device: str, steps: int) -> None:
    """Train one of LOOPS in this process; prints a line for each step."""
    import torch

    from neox_core.run.loop import keep_freed_memory

    compiled_by_us = {"compiled": True} if mode == "compiled" and name == "bare" else {}
    model, loss_of = LOOPS[name](shape, device, **compiled_by_us)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    called = model
    if mode == "compiled" and name != "bare":
        called = torch.compile(model)
    for step in range(steps):
        began = time.perf_counter()
        tokens = torch.randint(VOCAB, (shape.micro_batch, shape.seq + 1)).to(device)
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(called, tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        if name == "bare" and step == 0 and device == "cpu":
            next(keep_freed_memory())
        rate = shape.tokens / (time.perf_counter() - began)
        print(json.dumps({"tokens_per_s": rate, "memory_gib": peak_gib(device)}), flush=True)


def peak_gib(device: str) -> float:
    """Highest so far: of tensors on a GPU, of the process on a CPU."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() / 2**30
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def start(name: str, cell: tuple[str, str, str], options: argparse.Namespace, data: Path, folder: Path) -> Contender:
    shape, precision, mode = cell
    steps = WARM_UP + options.repeats * (SETTLE + SHAPES[shape].steps) + 1  # it is held back within the last one
    env = {"OMP_NUM_THREADS": str(options.threads)}
    if name == "neox":
        config = config_of(SHAPES[shape], steps, data, options.device) | {"compile": mode == "compiled"}
        if precision == "bf16":
            config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
        return neox_train(config, folder, env)
    if name == "bare" and options.device == "cpu":
        env |= KEEPING
    if name == "litgpt":
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), options.litgpt)))
    argv = [sys.executable, __file__, "--loop", name, *cell, str(steps), "--device", options.device]
    return Contender(argv, folder, env)


def take_cell(
    cell: tuple[str, str, str], options: argparse.Namespace, data: Path, folder: Path
) -> tuple[dict[str, Contender], dict[str, list[float]]]:
    """All contenders of a cell, at their end, and of each its tokens a second by turn."""
    names = [name for name in options.against if name != "litgpt" or options.litgpt] + ["neox"]
    shape = SHAPES[cell[0]]
    runs = {name: start(name, cell, options, data, folder / "-".join((*cell, name))) for name in names}
    return runs, take_turns(runs, WARM_UP, options.repeats, shape.steps, shape.tokens)


def measure(cell: tuple[str, str, str], options: argparse.Namespace, data: Path, folder: Path) -> None:
    """The rows of a cell."""
    runs, rates = take_cell(cell, options, data, folder)
    place = f"{options.threads} threads" if options.device == "cpu" else options.device
    case = f"{', '.join(cell)}, {place}"
    for name, run in runs.items():
        append_row("train_cpu", f"{case}: {name}", "tokens/s", rates[name])
        append_row("train_cpu", f"{case}: {name}", "GiB", [run.memory_gib])
        if name != "neox":
            ratios = [ours / theirs for ours, theirs in zip(rates["neox"], rates[name], strict=True)]
            append_row("train_cpu", f"{case}: neox / {name}, tokens/s", "times", ratios)
            append_row("train_cpu", f"{case}: neox / {name}, GiB", "times", [runs["neox"].memory_gib / run.memory_gib])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--litgpt", help="folder that LitGPT is installed in; left out without it")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--modes", nargs="+", choices=["eager", "compiled"], default=["eager", "compiled"])
    parser.add_argument("--against", nargs="+", choices=list(LOOPS), default=list(LOOPS))
    parser.add_argument("--loop", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loop:
        name, shape, precision, mode, steps = options.loop
        plain_loop(name, SHAPES[shape], precision, mode, options.device, int(steps))
        return
    with tempfile.TemporaryDirectory() as temporary:
        data = write_dataset(Path(temporary), 100_000)
        for cell in product(options.shapes, options.precisions, options.modes):
            measure(cell, options, data, Path(temporary))


if __name__ == "__main__":
    main()
