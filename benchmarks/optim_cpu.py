"""Step time of the optimizers over a model of 100 M parameters on a CPU, next to what memory allows.

    python benchmarks/optim_cpu.py [--repeats 9] [--threads 2] [--only SM3,Lion] [--dry]

The parameters are those of a GPT of 12 layers of 768 with a vocabulary of 20480, fp32. Each repeat steps every
optimizer once, in turn, and copies one buffer of 400 MB to another in between: a copy moves 2 x 400 MB, which is the
bandwidth. The floor of an optimizer is the bytes that a step must move over that bandwidth: parameters, gradient and
state each read once, parameters and state written once. Lamb's norms are of the whole update, so it must go over
parameters and state twice. Muon's floor leaves out its matrix products, which take most of its time.
Rows: milliseconds of a step, and times the floor of the same repeat. They go to benchmarks/results.csv; --dry: nowhere.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from attrs import field, frozen
from neox_author.testing import build, load_only
from results import append_row

LAYERS, HIDDEN, VOCAB = 12, 768, 20480


@frozen
class Case:
    """bytes: that a step moves at least, for each parameter."""

    plugin: str
    name: str
    bytes: int
    settings: dict[str, Any] = field(factory=dict)


CASES = {
    "Adam": Case("neox-adam", "Adam", 28),
    "Adam, plain torch": Case("neox-adam", "Adam", 28, {"torch_adam": True}),
    "CPU_Adam": Case("neox-adam", "CPU_Adam", 28),
    "SM3": Case("neox-sm3", "SM3", 12),
    "SM3, momentum": Case("neox-sm3", "SM3", 20, {"momentum": 0.9}),
    "Lion": Case("neox-lion", "Lion", 20),
    "SM3, plain torch": Case("neox-sm3", "SM3", 12, {"fused": False}),
    "Lion, plain torch": Case("neox-lion", "Lion", 20, {"fused": False}),
    "Lamb": Case("neox-lamb", "Lamb", 40),
    "Muon": Case("neox-muon", "Muon", 20),
}


def parameters() -> list[torch.nn.Parameter]:
    """Of a GPT: the table, and of each layer four matrices, their biases and two norms."""
    matrices = [(3 * HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (4 * HIDDEN, HIDDEN), (HIDDEN, 4 * HIDDEN)]
    layer = [*matrices, *((rows,) for rows, _ in matrices), *[(HIDDEN,)] * 4]
    torch.manual_seed(0)
    found = [torch.nn.Parameter(torch.randn(shape) * 0.02) for shape in [(VOCAB, HIDDEN), *layer * LAYERS]]
    table: Any = found[0]
    table.is_table = True
    for parameter in found:
        parameter.grad = torch.randn_like(parameter)
    return found


def make(case: Case, weights: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    entry = load_only(case.plugin).find("optimizer", case.name)
    groups = [
        {"params": [each for each in weights if each.ndim > 1], "weight_decay": 0.0},
        {"params": [each for each in weights if each.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer: torch.optim.Optimizer = entry.load()(groups, build(entry, lr=1e-6, **case.settings))
    return optimizer


def milliseconds(act: Callable[[], Any]) -> float:
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default=",".join(key.replace(", ", "+") for key in CASES))
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cases = {key.replace("+", ", "): CASES[key.replace("+", ", ")] for key in options.only.split(",")}

    weights = parameters()
    count = sum(each.numel() for each in weights)
    optimizers = {key: make(case, weights) for key, case in cases.items()}
    source, target = torch.ones(100_000_000), torch.zeros(100_000_000)
    for optimizer in optimizers.values():
        optimizer.step()  # makes the state
    bandwidths: list[float] = []
    times: dict[str, list[float]] = {key: [] for key in cases}
    floors: dict[str, list[float]] = {key: [] for key in cases}
    for _ in range(options.repeats):
        for key, case in cases.items():
            copied = milliseconds(lambda: target.copy_(source))
            took = milliseconds(optimizers[key].step)
            bandwidths.append(8e8 / copied * 1e-6)
            times[key].append(took)
            floors[key].append(took / (case.bytes * count / 8e8 * copied))
    print(f"{count / 1e6:.1f} M parameters, {options.threads} threads, copy {median(bandwidths):.1f} GB/s")
    for key in cases:
        print(f"{key:20} {median(times[key]):8.1f} ms  {median(floors[key]):.2f} x the floor")
    if not options.dry:
        append_row("optim_cpu", f"copy, {options.threads} threads", "GB/s", bandwidths)
        for key in cases:
            append_row("optim_cpu", f"{key}, {options.threads} threads", "ms", times[key])
            append_row("optim_cpu", f"{key}, {options.threads} threads", "x floor", floors[key])


if __name__ == "__main__":
    main()
