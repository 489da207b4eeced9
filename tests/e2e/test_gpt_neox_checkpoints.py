"""Checkpoints that GPT-NeoX itself wrote, imported and trained further: its own next ten losses, in several layouts."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from neox_checkpoints.importing import import_checkpoint
from neox_checkpoints.neox.format import GPTNeoX

from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import write_runfile

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "reference" / "checkpoints"
FOLDER = Path(os.environ.get("NEOX_REFERENCE_CHECKPOINTS", BESIDE))
pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(
        not FOLDER.is_dir(), reason="set NEOX_REFERENCE_CHECKPOINTS to a folder of GPT-NeoX's checkpoints"
    ),
]
ONE, HALVES = "num_gpus=1", "num_gpus=2 train_micro_batch_size_per_gpu=2 gradient_accumulation_steps=1"
TENSOR, STAGES = "num_gpus=2 model-parallel-size=2", "num_gpus=2 pipe-parallel-size=2"
PLAIN = f"{ONE} engine=plain"
CASES = {
    "one rank, parallel residual": ("v1_fp32_z0", (TENSOR, STAGES, HALVES)),
    "ZeRO 1 over two data ranks": ("v2_fp32_z1_dp2", (ONE, TENSOR, STAGES, f"{HALVES} z1")),
    "two tensor ranks, serial residual": ("v3_fp32_z0_mp2_serial", (TENSOR, STAGES, HALVES)),
    "two stages, with accumulation": ("v4_fp32_z0_pp2", (PLAIN, TENSOR, STAGES, HALVES)),
    "without a pipeline": ("v6_fp32_z0_sequential", (ONE, TENSOR, STAGES, HALVES)),
    "two tensor ranks, parallel residual, tied": ("v7b_fp32_z1_mp2_tied", (PLAIN, TENSOR, STAGES, f"{HALVES} z1")),
    "LLaMA-like": ("v8_llama", (TENSOR, STAGES, HALVES)),
}
STEPS = 10


def test_the_next_ten_losses_are_gpt_neox_s(tmp_path: Path, start: Callable[[str, Path, Any], None]) -> None:
    catalog, runs, wanted = load_plugins(), [], {}
    for name, (folder, layouts) in CASES.items():
        imported = tmp_path / folder
        import_checkpoint(FOLDER / folder / "checkpoint", imported, GPTNeoX(), catalog)
        steps = json.loads((FOLDER / folder / "losses.json").read_text())["steps"]
        losses = {each["iteration"]: float(each["lm_loss"]) for each in steps}
        for layout in layouts:
            run = tmp_path / f"{folder} {len(runs)}"
            sets = layout.replace(" z1", " zero_optimization.stage=1").split()
            sets += [f"load={imported}", f"save={run}", f"data-path={FOLDER}/data/ref_text_document", "num-workers=0"]
            sets += ["log-interval=1", "device=cpu", "distributed-backend=gloo", "monitors=[jsonl]", "peak-tflops=1"]
            plan = prepare_run([imported / "config.yml"], sets, catalog=catalog, machine=Machine(0, 2)).plan
            write_runfile(plan, run / "run.json")
            runs.append((plan.cluster.world_size, str(run / "run.json")))
            wanted[run] = f"{name}, {layout}", losses
    start("continued.py", tmp_path, runs)
    apart = {}
    for run, (said, losses) in wanted.items():
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        found = {each["step"]: each["loss"] for each in lines if "loss" in each}
        assert list(found) == list(range(11, 11 + STEPS)), said
        apart[said] = max(abs(found[step] - losses[step]) for step in found)
    assert not {said: most for said, most in apart.items() if most > 1e-5}
