"""Checkpoints that GPT-NeoX itself wrote (ea7aefd8, DeeperSpeed 91d1c55b), where a folder of them is at hand."""

import json
import os
import pickle
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from neox_checkpoints.importing import import_checkpoint
from neox_checkpoints.neox.format import GPTNeoX
from neox_gpt.build import build_model
from torch import Tensor

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


OURS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "mlp_norm",
    "attention.query_key_value": "attention.qkv",
    "attention.dense": "attention.output",
    "mlp.linear1": "mlp.up",
    "mlp.linear2": "mlp.down",
}


class Held:
    """Stands for any class of DeepSpeed, which need not be there."""

    def __init__(self, *arguments: Any) -> None: ...


class Foreign(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return Held if module.startswith("deepspeed") else super().find_class(module, name)


def load(path: Path) -> Any:
    return torch.load(
        path, weights_only=False, pickle_module=SimpleNamespace(Unpickler=Foreign, __name__="", load=None)
    )


def ours(name: str) -> str:
    """For the 2 layers that all of these models have."""
    layer, _, rest = name.removeprefix("sequential.").replace("tied_modules.embed.", "0.").partition(".")
    module, _, leaf = rest.rpartition(".")
    leaf = "weight" if leaf == "scale" else leaf
    ends = {"0": "embedding", "5": "final_norm", "6": "head"}
    return f"{ends[layer] if layer in ends else f'layers.{int(layer) - 2}.{OURS[module]}'}.{leaf}"


def by_rank(step: Path) -> dict[str, dict[str, list[Tensor]]]:
    """What the files hold of each parameter in the order of the tensor ranks: masters, moments and weights."""
    found: dict[str, dict[str, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(step.glob("layer_*")):
        for leaf, each in load(path).items():
            found["weight"][ours(f"{int(path.name[6:8])}.{leaf}")].append(each)
    order = [
        [name for name in found["weight"] if _decays(name)],
        [name for name in found["weight"] if not _decays(name)],
    ]
    for path in sorted(step.glob("mp_rank_*")):
        content = load(path)
        for name, each in (content["module"] or {}).items():
            found["weight"][ours(name)].append(each)
        zero = sorted(step.glob(f"*zero_pp_rank_*_{path.name[:10]}_optim_states.pt"))
        if not zero:
            state = iter(content["optimizer"]["state"].values())
            order = [[*filter(_decays, found["weight"])], [name for name in found["weight"] if not _decays(name)]]
            stage = sorted(step.glob("mp_rank_*")).index(path) if "pp2" in step.parts[-3] else None
            for name in (each for group in order for each in group if stage in (None, _stage(each))):
                held = next(state)
                for kind in ("exp_avg", "exp_avg_sq"):
                    found[kind][name].append(held[kind])
            continue
        states = [load(each)["optimizer_state_dict"] for each in zero]
        for group, shapes in enumerate(content["param_shapes"]):
            parts = {"master": [each["single_partition_of_fp32_groups"][group].detach() for each in states]}
            bases = [each["base_optimizer_state"]["state"][group] for each in states]
            parts |= {kind: [base[kind] for base in bases] for kind in ("exp_avg", "exp_avg_sq")}
            for kind, pieces in parts.items():
                flat, at = torch.cat(pieces), 0
                for name, shape in shapes.items():
                    found[kind][ours(name)].append(flat[at : at + shape.numel()].view(shape))
                    at += shape.numel()
    return found


def _decays(name: str) -> bool:
    return "norm" not in name and not name.endswith("bias")


def _stage(name: str) -> int:
    return 0 if name.startswith(("embedding", "layers.0.")) else 1


def joined(name: str, parts: list[Tensor], *, grouped: bool, summed: bool) -> Tensor:
    if name.endswith(("output.weight", "down.weight")):
        return torch.cat(parts, 1)
    if "norm" in name:
        return parts[0]
    if name.endswith(("output.bias", "down.bias")):
        return torch.stack(parts).sum(0) if summed else parts[0]
    whole = torch.cat(parts)
    if grouped and ".qkv." in name:  # four queries of 16, two keys, two values: two queries, a key and its value, twice
        q, k, v = whole.split((64, 32, 32))
        whole = torch.cat([part for key in range(2) for part in (q.chunk(2)[key], k.chunk(2)[key], v.chunk(2)[key])])
    return whole


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_masters_and_moments_are_gpt_neox_s_to_the_bit(run: Path, tmp_path: Path) -> None:
    final, found = import_checkpoint(run / "checkpoint", tmp_path / "ours", GPTNeoX(), load_plugins())
    reader, theirs = CheckpointReader(final), by_rank(run / "checkpoint" / "global_step10")
    grouped, parallel = "num-kv-heads" in found.keys, bool(found.keys.get("gpt-j-residual"))
    assert set(theirs["weight"]) == set(reader.shapes("weight"))
    for name in theirs["weight"]:
        master = (theirs["master"] or theirs["weight"])[name]
        wanted = joined(name, master, grouped=grouped, summed=parallel)
        assert torch.equal(reader.tensor(reader.master_kind(name), name), wanted), name
        for kind in ("exp_avg", "exp_avg_sq"):
            wanted = joined(name, theirs[kind][name], grouped=grouped, summed=False)
            assert torch.equal(reader.tensor("state", name, kind), wanted), f"{kind} of {name}"
        assert reader.tensor("state", name, "step").item() == 10
