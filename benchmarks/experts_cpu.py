"""Tokens per second of training with experts next to the dense model of as many active parameters.

    python benchmarks/experts_cpu.py [--repeats 5] [--threads N] [--shapes 14m 70m] [--router topk]

`dense` has the MLP of 4 x hidden-size; `experts` has 8 of half that width in each layer, of which a token is sent to
2, so a token is multiplied by as many weights, besides those of the router. Both are `neox train` in fp32, as in
train_cpu.py, start at once and then take turns. Rows are appended to benchmarks/results.csv.
"""

import argparse
import os
import tempfile
from pathlib import Path

from results import append_row
from train_cpu import SHAPES, WARM_UP, config_of, write_dataset
from turns import SETTLE, neox_train, take_turns

EXPERTS, CHOSEN, TURN = 8, 2, 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["14m"])
    parser.add_argument("--router", choices=["topk", "sinkhorn"], default="topk")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        data = write_dataset(Path(temporary), 100_000)
        for name in options.shapes:
            shape = SHAPES[name]
            steps = WARM_UP + options.repeats * (SETTLE + TURN) + 1
            dense = config_of(shape, steps, data) | {"use-bias-in-mlp": False}
            moe = {"moe-num-experts": EXPERTS, "moe-top-k": CHOSEN, "moe-router-type": options.router}
            moe |= {"mlp-type": "moe", "intermediate-size": 4 * shape.hidden // CHOSEN}
            env = {"OMP_NUM_THREADS": str(options.threads)}
            runs = {
                each: neox_train(config, Path(temporary) / name / each, env)
                for each, config in (("dense", dense), ("experts", dense | moe))
            }
            rates = take_turns(runs, WARM_UP, options.repeats, TURN, shape.tokens)
            case = f"{name}, fp32, {options.threads} threads"
            told = f"{EXPERTS} experts, {CHOSEN} a token, {options.router}"
            append_row("experts_cpu", f"{case}: dense", "tokens/s", rates["dense"])
            append_row("experts_cpu", f"{case}: {told}", "tokens/s", rates["experts"])
            ratios = [ours / plain for ours, plain in zip(rates["experts"], rates["dense"], strict=True)]
            append_row("experts_cpu", f"{case}: {told} / dense", "times", ratios)


if __name__ == "__main__":
    main()
