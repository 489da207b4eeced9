"""Checkpoints that GPT-NeoX itself wrote (ea7aefd8, DeeperSpeed 91d1c55b), where a folder of them is at hand."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from neox_checkpoints.importing import import_checkpoint
from neox_checkpoints.neox.format import GPTNeoX
from neox_gpt.build import build_model

from neox_core.checkpoint.read import CheckpointReader
from neox_core.hooks.loader import load_plugins
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.resolve import prepare_run

BESIDE = Path(__file__).resolve().parents[4] / "shared" / "reference" / "checkpoints"
FOLDER = Path(os.environ.get("NEOX_REFERENCE_CHECKPOINTS", BESIDE))
RUNS = sorted(each.parent for each in FOLDER.glob("*/losses.json"))
pytestmark = pytest.mark.skipif(not RUNS, reason="set NEOX_REFERENCE_CHECKPOINTS to a folder of GPT-NeoX's checkpoints")


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_the_next_loss_is_gpt_neox_s(run: Path, tmp_path: Path) -> None:
    final, found = import_checkpoint(run / "checkpoint", tmp_path / "ours", GPTNeoX(), load_plugins())
    reader = CheckpointReader(final)
    plan = prepare_run([tmp_path / "ours" / "config.yml"], start=False).plan
    weights = {name: reader.tensor(reader.master_kind(name), name) for name in reader.shapes("weight")}
    context = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), 0)
    model = build_model(plan.model, found.keys["padded-vocab-size"], context, weights).eval()
    batch = torch.from_numpy(np.load(run / "batches.npy")[10].astype(np.int64))
    with torch.no_grad():
        loss = model.loss(batch[:, :-1], batch[:, 1:]).item()
    (step,) = (each for each in json.loads((run / "losses.json").read_text())["steps"] if each["iteration"] == 11)
    tolerance = 2e-3 if "bf16" in found.keys else 1e-5
    assert loss == pytest.approx(float(step["lm_loss"]), abs=tolerance)
