"""The decoder of this checkout next to that of another commit: what mixers and feed-forwards cost as components.

    python benchmarks/doors_cpu.py OTHER [--shape quickstart] [--runs 11]

OTHER is a folder with the files of another commit (`git archive`), such as the one before `attention-config` and
`mlp-type` chose components. One process for each checkout takes turns of a few steps, forward and backward, on one
thread. Times are of the processor, which other work on the machine changes less. It also compares the operations of
torch that a step makes, the loss and the sum of the gradients, bit for bit. Rows go to benchmarks/results.csv.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from results import append_row

ROOT = Path(__file__).resolve().parent.parent
STEPS = 8
SIDE = r"""
import sys, time
from collections import Counter

import torch
from torch.profiler import ProfilerActivity, profile

from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import ComponentRef
from neox_gpt.build import build_model
from neox_gpt.config.plan import GPTPlan

torch.set_num_threads(1)
width, layers, heads, vocab, seq, batch = map(int, sys.argv[1:])


def part(kind, target, settings=None, **values):
    return ComponentRef(kind, "any", "neox-any", "0", target, settings, values)


plan = GPTPlan(
    num_layers=layers, hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width, seq_length=seq,
    max_position_embeddings=seq, padded_vocab_size=vocab, make_vocab_size_divisible_by=1, tie_embeddings=False,
    norm=part("norm", "neox_norms.layernorm:LayerNorm", "neox_norms.settings:LayerNormSettings"),
    activation=part("activation", "neox_activations.gelu:Gelu"),
    position=part("position", "neox_positions.rotary:Rotary", "neox_positions.settings:RotarySettings", rotary_pct=1.0),
    parallel_residual=True, residual_post_norm=False, hidden_dropout=0.0, attention_dropout=0.0, init_method="normal",
    output_init_method="scaled_normal", init_std=0.02, attention_softmax_in_fp32=False,
)
model = build_model(plan, vocab, BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), 1))
tokens = torch.randint(vocab, (batch, seq), generator=torch.Generator().manual_seed(7))


def step():
    model.zero_grad()
    loss = model.loss(tokens, tokens) if hasattr(type(model), "loss") else model(tokens, tokens)
    loss.backward()
    return loss


for _ in range(3):
    loss = step()
with profile(activities=[ProfilerActivity.CPU]) as profiled:
    step()
ops = Counter(event.name for event in profiled.events() if event.name.startswith("aten::"))
total = sum(each.grad.double().abs().sum() for each in model.parameters())
print(sum(ops.values()), loss.item().hex(), total.item().hex(), *sorted(f"{name}={n}" for name, n in ops.items()))
for line in sys.stdin:
    sys.stdout.flush()
    began = time.process_time()
    for _ in range(int(line)):
        step()
    print((time.process_time() - began) / int(line), flush=True)
"""
SHAPES = {"quickstart": (128, 4, 4, 512, 128, 8), "14m": (128, 6, 4, 50304, 512, 1)}
"""Width, layers, heads, rows of the embedding, tokens of a sample, samples of a step."""


def start(tree: Path, shape: str, names: Path) -> "subprocess.Popen[str]":
    """names: a folder with the metadata that the packages of a checkout have once they are installed."""
    packages = [tree, *sorted(tree.glob("plugins/neox-*"))]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, (*packages, names)))}
    argv = [sys.executable, "-c", SIDE, *map(str, SHAPES[shape])]
    return subprocess.Popen(argv, env=env, cwd=names, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def ask(process: "subprocess.Popen[str]", count: int) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{count}\n")
    process.stdin.flush()
    return process.stdout.readline()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="quickstart")
    parser.add_argument("--runs", type=int, default=11)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as names:
        info = Path(names, "neox_gpt-0.1.0.dist-info")
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: neox-gpt\nVersion: 0.1.0\n")
        sides = [start(tree, options.shape, Path(names)) for tree in (ROOT, options.other.resolve())]
        made = [ask(each, STEPS) for each in sides]  # what comes before the first turn
        print("same operations, loss and gradients" if made[0] == made[1] else f"differ:\n{made[0]}{made[1]}")
        print(made[0].split()[0], "operations of torch in a step")
        for each in sides:
            assert each.stdout is not None
            each.stdout.readline()  # of the first turn
        ratios, own = [], []
        for index in range(options.runs):
            times = {each: float(ask(each, STEPS)) for each in (sides if index % 2 else sides[::-1])}
            mine, theirs = (times[each] for each in sides)
            ratios.append(mine / theirs)
            own.append(mine)
        for each in sides:
            each.kill()
    append_row("doors_cpu", f"step of {options.shape}, processor: this", "s", own)
    append_row("doors_cpu", f"step of {options.shape}, processor: this / {options.other.name}", "times", ratios)


if __name__ == "__main__":
    main()
