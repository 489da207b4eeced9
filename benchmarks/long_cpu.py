"""Training on long contexts: time and memory of the 14M shape per form of attention, next to transformers.

    python benchmarks/long_cpu.py [--lengths 8192 16384 32768] [--forms dense window ...] [--repeats 3]

One sample a step, fp32, one thread, the engine plain. dense: all tokens before; recomputed: the same with
`checkpoint-activations`; window: 512 tokens back; blocks: the block-sparse layout `local`, 512 tokens back in blocks of
64. transformers: the plain loop of train_cpu.py, left out where its logits alone need more than half of the free
memory. Each form is a run of its own, and its time is that of the processor, which other work on the machine changes
little; the first step does not count. Memory is the peak of the process. Rows go to benchmarks/results.csv.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
from attrs import evolve
from results import append_row
from train_cpu import SHAPES, VOCAB, Shape, config_of, plain_loop, write_dataset
from turns import Contender, neox_train

BACK, BLOCK = 512, 64
LOCAL = {"mode": "local", "block": BLOCK, "num_sliding_window_blocks": 2 * (BACK // BLOCK) + 1}
FORMS: dict[str, dict[str, Any]] = {
    "dense": {},
    "recomputed": {"checkpoint-activations": True},
    "window": {"sliding-window-width": BACK},
    "blocks": {"attention-config": [[["sparse"], "all"]], "sparsity-config": LOCAL},
}
PEER = "transformers"


def started(form: str, shape: Shape, steps: int, folder: Path) -> Contender:
    env = {"OMP_NUM_THREADS": "1"}
    if form == PEER:
        return Contender([sys.executable, __file__, "--peer", str(shape.seq), str(steps)], folder, env)
    data = write_dataset(folder.parent, (steps + 1) * shape.seq)
    return neox_train(config_of(shape, steps, data) | {"engine": "plain"} | FORMS[form], folder, env)


def measure(form: str, shape: Shape, repeats: int) -> tuple[list[float], float]:
    """Milliseconds of the processor for a token of each step, and GiB."""
    took = []
    with tempfile.TemporaryDirectory() as temporary:
        run = started(form, shape, repeats + 2, Path(temporary, "run"))
        run.wait(1)
        for step in range(2, repeats + 2):
            before = run.processor_s
            run.wait(step)
            took.append((run.processor_s - before) / shape.tokens * 1e3)
        run.end()
    return took, run.memory_gib


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", nargs="+", type=int, default=[8192, 16384, 32768])
    parser.add_argument("--forms", nargs="+", choices=[*FORMS, PEER], default=[*FORMS, PEER])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        plain_loop(PEER, shape_of(options.peer[0]), "fp32", "eager", "cpu", options.peer[1])
        return
    for seq in options.lengths:
        for form in options.forms:
            logits = 2 * seq * VOCAB * 4  # and their gradient
            if form == PEER and logits > psutil.virtual_memory().available / 2:
                print(f"{form} at {seq}: left out, its logits need {logits / 2**30:.1f} GiB")
                continue
            took, gib = measure(form, shape_of(seq), options.repeats)
            append_row("long_cpu", f"14m, {seq} tokens, fp32, 1 thread: {form}", "CPU ms a token", took)
            append_row("long_cpu", f"14m, {seq} tokens, fp32, 1 thread: {form}", "GiB", [gib])


def shape_of(seq: int) -> Shape:
    return evolve(SHAPES["14m"], seq=seq, micro_batch=1)


if __name__ == "__main__":
    main()
