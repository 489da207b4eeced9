"""The quickstart's model after each technique of compression: validation loss, and what an export of it takes.

    .venv/bin/neox data prepare stdlib --out data/stdlib
    .venv/bin/python benchmarks/compression_cpu.py [--steps 400] [--more 100] [--only "rows" ...] [--table FILE]

A first run of `--steps` steps is the start of all others, which train `--more` steps with one technique each at a
quarter of its learning rate; "none" trains them without one. The size is that of the weights in an export: parameters,
those that are not zero, and bytes where a rounded weight takes its bits and any other four bytes. What marks zeros is
not counted. Rows are appended to benchmarks/results.csv, and the table is printed as docs/compression.md has it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from results import append_row
from safetensors.torch import load_file

ROOT = Path(__file__).parents[1]
HALF = {"params": {"dense_ratio": 0.5}}


def technique(name: str, shared: Mapping[str, Any], **group: Any) -> dict[str, Any]:
    """The block of one technique that acts from the first step on."""
    groups = {"different_groups": {"g": group}} if group else {}
    return {"compression_training": {name: {"shared_parameters": {"enabled": True, **shared}, **groups}}}


def bits(number: int) -> dict[str, Any]:
    params = {"start_bits": number, "target_bits": number}
    shared = {"quantize_weight_in_forward": True, "quantize_groups": 64}
    return technique("weight_quantization", shared, params=params)


def snip(steps: int, pattern: str) -> dict[str, Any]:
    shared = {"method": "snip_momentum", "block_pattern": pattern, "dense_ratio": 0.5}
    times = {"schedule_offset_end": steps // 2, "schedule_offset_stride": max(1, steps // 20)}
    return technique("sparse_pruning", shared | times)


def fewer(teacher: Path) -> dict[str, Any]:
    modules = ["embedding", "final_norm", "head"]
    layers = {"enabled": True, "teacher": str(teacher), "teacher_layer": [0, 2], "other_module_name": modules}
    return {"num-layers": 2, "compression_training": {"layer_reduction": layers}}


def cases(teacher: Path, steps: int) -> dict[str, dict[str, Any]]:
    rows = {"modules": ["mlp.up"], "related_modules": [["mlp.down"]]}
    heads = {"modules": ["attention.output"], "related_modules": [["attention.qkv"]]}
    inputs = technique("activation_quantization", {"range_calibration": "dynamic"}, params={"bits": 8})
    return {
        "none": {},
        "weights of 8 bits": bits(8),
        "weights of 4 bits": bits(4),
        "weights of 2 bits": bits(2),
        "inputs of 8 bits": inputs,
        "half of the weights, l1": technique("sparse_pruning", {}, **HALF),
        "half of the weights, topk": technique("sparse_pruning", {"method": "topk"}, **HALF),
        "half of the weights, snip_momentum 4x1": snip(steps, "4x1"),
        "half of the weights, snip_momentum 2:4": snip(steps, "2:4"),
        "half of the rows": technique("row_pruning", {}, **HALF, **rows),
        "half of the heads": technique("head_pruning", {"num_heads": 4}, **HALF, **heads),
        "two of three layers": fewer(teacher),
        "two of three layers, distilled": {**fewer(teacher), "objective": "distillation"},
    }


def train(config: dict[str, Any], folder: Path) -> float:
    """The validation loss after the last step."""
    file = folder / "config.yml"
    file.write_text(yaml.safe_dump(config))
    neox("train", str(file), log=folder / "train.log")
    lines = (Path(config["save"]) / "metrics.jsonl").read_text().splitlines()
    return float([json.loads(line)["valid_loss"] for line in lines if "valid_loss" in line][-1])


def neox(*words: str, log: Path) -> None:
    """A command of this checkout, on one thread for each process that it starts."""
    env = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    with log.open("w") as file:
        command = [sys.executable, "-m", "neox_core", *words]
        done = subprocess.run(command, cwd=ROOT, env=env, check=False, stdout=file, stderr=subprocess.STDOUT)
    if done.returncode:
        raise SystemExit(f"neox {words[0]} failed:\n{log.read_text()[-3000:]}")


def size(save: Path, config: dict[str, Any], folder: Path) -> tuple[int, int, int]:
    """Parameters, those that are not zero, and bytes of an export of what a run has saved."""
    out = folder / "export"
    neox("checkpoint", "export-hf", str(save), "--out", str(out), log=folder / "export.log")
    weights = {name: each for file in out.glob("*.safetensors") for name, each in load_file(file).items()}
    block = config.get("compression_training", {}).get("weight_quantization")
    number = block["different_groups"]["g"]["params"]["target_bits"] if block else 32
    numbers = nonzero = bytes_ = 0
    for name, each in weights.items():
        layer = ".layers." in name and each.dim() == 2
        numbers, nonzero = numbers + each.numel(), nonzero + int(each.count_nonzero())
        bytes_ += each.numel() * (number if layer else 32) // 8
    return numbers, nonzero, bytes_


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="of the first run")
    parser.add_argument("--more", type=int, default=100, help="steps with a technique")
    parser.add_argument("--only", nargs="+", help="techniques that have one of these in their names")
    parser.add_argument("--table", type=Path, help="a file for the table")
    args = parser.parse_args()
    base = yaml.safe_load((ROOT / "configs/quickstart.yml").read_text())
    for key in ("sample-prompt", "save-interval", "keep-last-n-checkpoints"):
        del base[key]
    base |= {"device": "cpu", "engine": "plain", "eval-iters": 40}
    table = ["| technique | validation loss | parameters | not zero | MB |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        first = base | {"train-iters": args.steps, "eval-interval": args.steps, "save": str(folder / "first")}
        began = train(first, folder)
        table.append(_line("the first run", began, size(folder / "first", {}, folder / _new(folder, "0"))))
        for place, (name, block) in enumerate(cases(folder / "first", args.more).items(), start=1):
            if args.only and not any(each in name for each in args.only):
                continue
            own = folder / _new(folder, str(place))
            config = base | {"train-iters": args.more, "eval-interval": args.more, "save": str(own / "run")} | block
            config["optimizer"] = base["optimizer"] | {"params": base["optimizer"]["params"] | {"lr": 5e-4}}
            if "num-layers" not in block:
                config |= {"load": str(folder / "first"), "finetune": True}
            found = train(config, own)
            append_row("compression_cpu", name, "valid_loss", [found])
            exports = "activation_quantization" not in block.get("compression_training", {})
            table.append(_line(name, found, size(own / "run", block, own) if exports else None))
    print("\n".join(table))
    if args.table:
        args.table.write_text("\n".join(table) + "\n")


def _new(folder: Path, name: str) -> str:
    (folder / name).mkdir()
    return name


def _line(name: str, loss: float, sizes: tuple[int, int, int] | None) -> str:
    if sizes is None:
        return f"| {name} | {loss:.3f} | cannot be exported | | |"
    return f"| {name} | {loss:.3f} | {sizes[0]:,} | {sizes[1]:,} | {sizes[2] / 1e6:.1f} |"


if __name__ == "__main__":
    main()
