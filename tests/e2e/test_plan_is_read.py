"""Every field of a plan, and every setting of a chosen component, is read by a rank of some run."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neox_author.testing import build, load_only

from neox_core.hooks.catalog import Catalog
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import write_runfile

pytestmark = pytest.mark.ranks

BASE = """
device: cpu
num_gpus: 1
num-layers: 2
hidden-size: 32
num-attention-heads: 2
seq-length: 32
max-position-embeddings: 32
padded-vocab-size: 128
num-workers: 0
train_micro_batch_size_per_gpu: 2
optimizer: {type: Adam, params: {lr: 1.0e-3}}
train-iters: 4
eval-interval: 2
eval-iters: 1
log-interval: 1
save-interval: 2
peak-tflops: 1
"""
PLAIN = {"engine": "plain"}
RUNS: dict[str, dict[str, Any]] = {
    "deepspeed": {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}},
    "resumed": {
        "load": "{folder}/deepspeed",
        "train-iters": 6,
        "override-lr-scheduler": True,
        "zero_optimization": {"stage": 1},
    },
    "recomputed": {
        "checkpoint-activations": True,
        "deepspeed-activation-checkpointing": True,
        "on-nonfinite-loss": "skip",
    },
    "blend": {
        **PLAIN,
        **{f"{split}-data-paths": ["{folder}/tokens"] for split in ("train", "valid", "test")},
        "weight-by-num-documents": True,
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 2}},
    },
}
ALONE: dict[str, dict[str, Any]] = {
    "optimizer": {"optimizer": {"type": "{name}", "params": {"lr": 1e-3}}},
    "lr schedule": {"lr-decay-style": "{name}"},
    "norm": {"norm": "{name}"},
    "position": {"pos-emb": "{name}"},
    "sparse layout": {"sparsity": "all", "sparse_attention": {"mode": "{name}", "block": 8}},
}
"""Kinds of which each component with settings is chosen once."""
TALK = {"lr": 1e-3, "cuda_aware": False, "comm_backend_name": "gloo"}
ONE_BIT = {
    "OneBitAdam": {"freeze_step": 2},
    "OneBitLamb": {"freeze_step": 2, "coeff_beta": 0.1},
    "ZeroOneAdam": {"var_freeze_step": 2, "local_step_clipper": 2},
}
NEEDS: dict[str, dict[str, Any]] = {
    "staged": {"lr-stages": [{"style": "cosine", "share": 0.5, "to": 1e-4}, {"style": "linear", "share": 0.5}]},
    "inverse-sqrt": {"warmup": 0.5},
}
ONE_BIT_SETTINGS = [f"{name}Settings" for name in ONE_BIT]
DEEPSPEED = ("CPU_Adam", "OneBitAdam", "OneBitLamb", "ZeroOneAdam", "1Cycle", "OneCycle")
"""Components that need DeepSpeed's engine."""
OTHERS: dict[str, tuple[str, ...]] = {
    "the host, which starts the ranks": (
        *("ClusterPlan.hosts", "ClusterPlan.local_rank", "ClusterPlan.master_addr", "ClusterPlan.master_port"),
        *("ClusterPlan.threads_per_rank", "Host.devices", "Host.name", "Host.slots"),
        *(f"LauncherSettings.{name}" for name in ("log_dir", "meet_timeout", "host_timeout", "end_timeout")),
        *("RunPlan.engine_component", "RunPlan.launcher", "RunPlan.format"),
    ),
    "the plan's own methods, which a rank calls": (
        *("CheckpointPlan.load", "CheckpointPlan.stores", "GPTPlan.make_vocab_size_divisible_by"),
        "BatchPlan.data_parallel",
    ),
    "a rank that finds another schedule, or no checkpoint": ("CheckpointPlan.schedules", "CheckpointPlan.resume"),
    "ranks of several": (
        *("ClusterPlan.nvlink_pairs", "ClusterPlan.partition", "ClusterPlan.sequence_parallel"),
        "RecomputePlan.distribute",
    ),
    "a blend without weights by size": ("DataSource.weight",),
    "other mixers than softmax attention": ("GPTPlan.mixer_facts",),
    "rules, which refuse what is not its default": tuple(f"{name}.cuda_aware" for name in ONE_BIT_SETTINGS),
    "a layout with several patterns": ("FixedSettings.different_layout_per_head",),
    "rotary positions scaled by yarn": ("RotarySettings.rotary_truncate",),
}
"""Who reads the fields that these runs do not, each tested elsewhere."""


def filled(value: Any, **names: str) -> Any:
    """`value` with the names put in."""
    if isinstance(value, str):
        return value.format(**names)
    if isinstance(value, dict):
        return {key: filled(each, **names) for key, each in value.items()}
    return [filled(each, **names) for each in value] if isinstance(value, list) else value


def runs(catalog: Catalog) -> dict[str, dict[str, Any]]:
    found = dict(RUNS)
    for kind, keys in ALONE.items():
        for name in (each.component.name for each in catalog.registry.entries(kind) if each.component.settings):
            engine = {} if name in DEEPSPEED else PLAIN
            found[f"{kind} {name}"] = {**engine, **filled(keys, name=name), **NEEDS.get(name, {})}
    for name, params in ONE_BIT.items():
        found[f"optimizer {name}"] = {"optimizer": {"type": name, "params": {**TALK, **params}}}
    return found


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory, start: Any) -> dict[str, dict[str, bool]]:
    folder = tmp_path_factory.mktemp("reads")
    writer = load_only("neox-data-indexed").find("data backend", "mmap")
    tokens = writer.load()(build(writer)).create(folder / "tokens", 128)
    draw = np.random.default_rng(0)
    for _ in range(200):
        tokens.add_document(draw.integers(0, 120, 33).tolist())
    tokens.close()
    (folder / "base.yml").write_text(BASE)
    catalog = load_plugins()
    files = {}
    for name, changes in runs(catalog).items():
        data = {} if "train-data-paths" in changes else {"data-path": "{folder}/tokens", "split": "80,10,10"}
        keys = filled({"save": "{folder}/" + name, **data, **changes}, folder=str(folder))
        sets = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
        plan = prepare_run([folder / "base.yml"], sets, catalog=catalog, resume="auto").plan
        files[name] = str(folder / name / "run.json")
        write_runfile(plan, Path(files[name]))
    start("reads.py", folder, files)
    found: dict[str, dict[str, bool]] = defaultdict(dict)
    for name in files:
        for kind, fields in json.loads((folder / f"{name}.json").read_text()).items():
            for field, was_read in fields.items():
                found[kind][field] = was_read or found[kind].get(field, False)
    return found


def test_each_is_read(read: dict[str, dict[str, bool]]) -> None:
    unread = [f"{kind}.{name}" for kind, fields in read.items() for name, was_read in fields.items() if not was_read]
    assert set(unread) ^ {name for names in OTHERS.values() for name in names} == set()
