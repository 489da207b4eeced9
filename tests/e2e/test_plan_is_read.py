"""Every field of a plan, and every setting of a chosen component, is read by a rank of some run.

So each key that changes a plan reaches a rank: through the fields that it changes.
"""

import json
from base64 import b64encode
from collections import defaultdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from attrs import evolve
from attrs import fields as fields_of
from changed_keys import changes, keys
from neox_author.testing import build, load_only
from neox_elasticity.settings import ElasticityBlock
from plan_answers import answer_to, asking, changed_fields

from neox_core.hooks.catalog import Catalog
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
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
MACHINE = Machine(1, 4)
"""Has a GPU, which fp16 needs; its ranks are told to use the CPU."""
PLAIN = {"engine": "plain"}
STAGE_3 = {"optimizer": {"type": "CPU_Adam", "params": {"lr": 1e-3}}}
EASY = {"enabled": True, "curriculum_type": "seqlen", "min_difficulty": 8, "max_difficulty": 32}
RUNS: dict[str, dict[str, Any]] = {
    "deepspeed": {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}},
    "resumed": {
        "load": "{folder}/deepspeed",
        "train-iters": 6,
        "override-lr-scheduler": True,
        "zero_optimization": {"stage": 2},
    },
    "recomputed": {
        "checkpoint-activations": True,
        "deepspeed-activation-checkpointing": True,
        "on-nonfinite-loss": "skip",
        "flops_profiler": {"enabled": True, "profile_step": 1, "output_file": "{folder}/profile"},
        "comms_logger": {"enabled": True, "verbose": True},
        "communication_data_type": "fp32",
        "dump_state": True,
    },
    "fp16": {"device": "cuda", "fp16": {"enabled": True}, "zero_optimization": {"stage": 1}},
    "stage 3": {
        **STAGE_3,
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "offload_param": {"device": "cpu"},
        },
        "train-data-paths": ["{folder}/tokens"],
        "train-data-weights": [2.0],
        "valid-data-paths": ["{folder}/tokens"],
    },
    "blend": {
        **PLAIN,
        **{f"{split}-data-paths": ["{folder}/tokens"] for split in ("train", "valid", "test")},
        "weight-by-num-documents": True,
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 2}},
        "curriculum_learning": {
            **EASY,
            "schedule_type": "fixed_root",
            "schedule_config": {"total_curriculum_step": 10, "difficulty_step": 8, "root_degree": 2},
        },
    },
    "encoder": {
        **PLAIN,
        "architecture": "bert",
        "objective": "masked-lm",
        **{f"{each}-token-id": at for at, each in enumerate(("cls", "sep", "mask", "pad"), 120)},
    },
    "retriever": {
        **PLAIN,
        "architecture": "retriever",
        "objective": "inverse-cloze",
        "ict-head-size": 8,
        "query-length": 8,
        "titles-data-path": "{folder}/tokens",
        "use-one-sent-docs": True,
        **{f"{each}-token-id": at for at, each in enumerate(("cls", "sep", "mask", "pad"), 120)},
    },
    "curvature": {**PLAIN, "eigenvalue": {"enabled": True, "verbose": True}},
    "text": {
        **PLAIN,
        "data-impl": "text",
        "data-path": "{folder}/text.jsonl",
        "split": "100,0,0",
        "eval-iters": 0,
        "tokenizer-type": "HFTokenizer",
        "vocab-file": "{folder}/tokenizer.json",
        "eod-token": "b",
        "append-eod": True,
        "pos-emb": "rotary",
        "rotary-scaling": "llama3",
        "rotary-scaling-factor": 2.0,
        "rotary-original-positions": 16,
        "lr-decay-style": "inverse-sqrt",
        "warmup": 0.5,
        "sparsity": "all",
        "sparse_attention": {"block": 8, "different_layout_per_head": True, "num_different_global_patterns": 2},
    },
    "tiktoken": {
        **PLAIN,
        "tokenizer-type": "TiktokenTokenizer",
        "vocab-file": "{folder}/ranks.tiktoken",
        "padded-vocab-size": 384,
        "sample-prompt": "a",
        "mlp-type": "moe",
        "moe-num-experts": 2,
        "moe-train-capacity-factor": 1.5,
        "pos-emb": "rotary",
        "rotary-scaling": "yarn",
        "rotary-scaling-factor": 2.0,
        "rotary-original-positions": 16,
        "curriculum_learning": {
            **EASY,
            "schedule_type": "fixed_discrete",
            "schedule_config": {"difficulty": [8, 32], "max_step": [2]},
        },
    },
}
SLOTS: dict[str, dict[str, dict[str, Any]]] = {
    "optimizer": {"optimizer": {"optimizer": {"type": "{name}", "params": {"lr": 1e-3}}}},
    "schedule": {
        "lr schedule": {"lr-decay-style": "{name}"},
        "scheduler": {"scheduler": {"type": "{name}", "params": {}}},
    },
    "norm": {"norm": {"norm": "{name}"}},
    "position": {"position": {"pos-emb": "{name}"}},
    "sparse layout": {"sparse layout": {"sparsity": "all", "sparse_attention": {"mode": "{name}", "block": 8}}},
    "monitor": {"monitor": {"{name}": {"enabled": True}}},
    "callback": {"callback": {}},
}
"""What a run chooses one of, by the kinds that offer it: each component with settings is chosen in some run."""
TALK = {"lr": 1e-3, "cuda_aware": False, "comm_backend_name": "gloo"}
ONE_BIT = {
    "OneBitAdam": {"freeze_step": 2},
    "OneBitLamb": {"freeze_step": 2, "coeff_beta": 0.1},
    "ZeroOneAdam": {"var_freeze_step": 2, "local_step_clipper": 2},
}
CYCLE = {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3}
CYCLE |= {"cycle_first_step_size": 1, "decay_step_size": 1, "decay_lr_rate": 0.1}
NEEDS: dict[str, dict[str, Any]] = {
    "staged": {"lr-stages": [{"style": "cosine", "share": 0.5, "to": 1e-4}, {"style": "linear", "share": 0.5}]},
    "WarmupCosineLR": {
        "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 4, "warmup_num_steps": 1}}
    },
    "spike_guard": {"spike_guard": {"enabled": True, "least": 2}},
    "ema": {"ema": {"enabled": True}},
    "profile": {"profile": {"first": 1, "last": 2}},
    "autoresume": {"adlr-autoresume": True, "adlr-autoresume-interval": 1, "autoresume-command": ["echo"]},
    "elasticity": {
        "train_micro_batch_size_per_gpu": None,
        "elasticity": {"enabled": True, "max_train_batch_size": 8, "micro_batch_sizes": [1, 2]},
    },
    **{name: {"scheduler": {"type": name, "params": CYCLE}} for name in ("1Cycle", "OneCycle")},
    **{name: {"optimizer": {"type": name, "params": {**TALK, **params}}} for name, params in ONE_BIT.items()},
}
ONE_BIT_SETTINGS = [f"{name}Settings" for name in ONE_BIT]
DEEPSPEED = ("CPU_Adam", *ONE_BIT, "1Cycle", "OneCycle")
"""Components that need DeepSpeed's engine."""
ONLINE = ("comet", "wandb")
"""Monitors that send what they are told."""
LAUNCHING = ("log_dir", "meet_timeout", "host_timeout", "end_timeout")
TAKEN = ("teacher", "keep_number_layer", "teacher_layer", "other_module_name")
OTHERS: dict[str, tuple[str, ...]] = {
    "the host, which starts the ranks": (
        *("ClusterPlan.local_rank", "ClusterPlan.master_addr", "ClusterPlan.master_port"),
        *("ClusterPlan.threads_per_rank", "Host.devices", "Host.name"),
        *(f"{kind}.{name}" for kind in ("LauncherSettings", "HostSettings", "PdshSettings") for name in LAUNCHING),
        *(f"HostSettings.launcher_{name}" for name in ("env", "program", "args")),
        *(
            f"{kind}.launcher_{name}"
            for kind in ("PdshSettings", "SlurmSettings")
            for name in ("env", "program", "args")
        ),
        "PdshSettings.pdsh_tree_from",
        *("RunPlan.engine_component", "RunPlan.launcher", "RunPlan.format"),
        *(f"SlurmSettings.{name}" for name in ("account", "comment", "log_dir", "partition")),
        *(f"SlurmSettings.{name}" for name in ("meet_timeout", "host_timeout", "end_timeout")),
    ),
    "the host, which plans what is enabled": (
        *("CsvBlock.enabled", "TensorBoardBlock.enabled", "SpikeGuardBlock.enabled", "SeqlenBlock.enabled"),
        *("SeqlenBlock.curriculum_type", "EmaBlock.enabled", "ElasticitySettings.elasticity"),
        *("AutoresumeSettings.adlr_autoresume", "EigenvalueBlock.enabled"),
        *(f"ElasticityBlock.{each.name}" for each in fields_of(ElasticityBlock)),
    ),
    "the host, which starts a run again": ("ElasticitySettings.max_restarts",),
    "a run that evaluates by lm-evaluation-harness, in plugins/neox-lm-eval/tests": (
        *(f"LMEvalBlock.{name}" for name in ("tasks", "task_folder", "interval", "num_fewshot", "limit", "batch_size")),
    ),
    "a run that writes samples, in plugins/neox-samples/tests": ("SamplesBlock.prompts", "SamplesBlock.interval"),
    "a run with a spike, in plugins/neox-spike-guard/tests": (
        *(f"SpikeGuardBlock.{name}" for name in ("after", "before", "most")),
    ),
    "a run with a teacher, or one that prunes blocks, in plugins/neox-compression/tests": (
        *(f"LayerReduction.{name}" for name in TAKEN),
        *(f"SparseShared.{name}" for name in ("schedule_offset_end", "schedule_offset_stride", "block_pattern")),
        *(
            "SparseShared.dense_ratio",
            "ShrinkingGroup.related_modules",
            "DistillationBlock.teacher",
            "DistillationBlock.weight",
        ),
        "DistillationBlock.temperature",
    ),
    "the plan's own methods, which a rank calls": (
        *("CheckpointPlan.load", "CheckpointPlan.stores", "GPTPlan.make_vocab_size_divisible_by"),
        "BertPlan.make_vocab_size_divisible_by",
        *("BatchPlan.data_parallel", "BatchPlan.ramp"),
    ),
    "a rank that finds another schedule, or no checkpoint": ("CheckpointPlan.schedules", "CheckpointPlan.resume"),
    "ranks of several": (
        *("ClusterPlan.nvlink_pairs", "ClusterPlan.partition", "ClusterPlan.sequence_parallel"),
        "RecomputePlan.distribute",
    ),
    "a kernel that was chosen or cannot run, in plugins/neox-kernels/tests": ("KernelPlan.key", "KernelPlan.reference"),
    "other mixers than softmax attention": ("GPTPlan.mixer_facts",),
    "`neox generate`": ("MixerFacts.decodes",),
    "an encoder with a tokenizer, in plugins/neox-bert/tests; one with layouts is refused": (
        *("BertPlan.tokenizer", "BertPlan.layouts"),
    ),
    "the commands of neox-retrieval, a retriever that starts with weights, and what is as of an encoder": (
        *(f"RetrieverPlan.{name}" for name in ("index", "layouts", "make_vocab_size_divisible_by", "tokenizer")),
        *(f"IndexPlan.{name}" for name in ("path", "batch", "log_interval", "gpu")),
    ),
    "rules, which refuse what is not its default": (*(f"{name}.cuda_aware" for name in ONE_BIT_SETTINGS),),
    "monitors that send what they are told, in plugins/neox-monitors/tests": (
        *(f"CometBlock.{name}" for name in ("workspace", "project", "samples_log_interval", "experiment_name")),
        *(f"CometBlock.{name}" for name in ("tags", "others", "experiment_key", "online", "mode")),
        *(f"WandbBlock.{name}" for name in ("group", "team", "project")),
    ),
    "a dataset of Hugging Face, in plugins/neox-data-hf/tests": ("HFDataSettings.hf_column",),
    "DeepSpeed with files of offloaded state, which needs libaio, in plugins/neox-deepspeed/tests": (
        *(f"engine.aio.{name}" for name in ("block_size", "queue_depth", "intra_op_parallelism", "single_submit")),
        "engine.aio.overlap_events",
        *(f"engine.zero_optimization.offload_param.{name}" for name in ("nvme_path", "buffer_count", "buffer_size")),
        *(f"engine.zero_optimization.offload_optimizer.{name}" for name in ("nvme_path", "buffer_count")),
    ),
    "DeepSpeed, by the presence of the block": ("engine.comms_logger.enabled",),
    "neox where it saves, by CheckpointPlan.whole_weights": (
        "engine.zero_optimization.stage3_gather_16bit_weights_on_model_save",
    ),
}
"""Who reads the fields that these runs do not, each tested elsewhere."""


def filled(value: Any, **names: str) -> Any:
    """`value` with the names put in."""
    if isinstance(value, str):
        return value.format(**names)
    if isinstance(value, dict):
        return {filled(key, **names): filled(each, **names) for key, each in value.items()}
    return [filled(each, **names) for each in value] if isinstance(value, list) else value


def runs(catalog: Catalog) -> dict[str, dict[str, Any]]:
    """What each run changes. One of every slot's components in a run, apart by the engine that they need."""
    found = dict(RUNS)
    for engine, mine in (("deepspeed", True), ("plain", False)):
        slots = [
            [
                {**filled(keys, name=name), **NEEDS.get(name, {})}
                for kind, keys in kinds.items()
                for name in names(catalog, kind)
                if (name in DEEPSPEED) == mine
            ]
            for kinds in SLOTS.values()
        ]
        for number, chosen in enumerate(zip_longest(*slots, fillvalue={})):
            changes = [key for each in chosen for key in each.items()]
            found[f"{engine} {number}"] = {"engine": engine, **dict(changes)}
    return found


def names(catalog: Catalog, kind: str) -> list[str]:
    components = (each.component for each in catalog.registry.entries(kind))
    return [each.name for each in components if each.settings and each.name not in ONLINE]


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
    (folder / "text.jsonl").write_text(
        "".join(json.dumps({"text": 40 * "a " + str(each)}) + "\n" for each in range(200))
    )
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    ranks = (f"{b64encode(bytes([each])).decode()} {each}\n" for each in range(256))
    (folder / "ranks.tiktoken").write_text("".join(ranks))
    catalog = load_plugins()
    files = {}
    for name, changed in runs(catalog).items():
        own = {"train-data-paths", "data-path"} & {*changed}
        data = {} if own else {"data-path": "{folder}/tokens", "split": "80,10,10"}
        named = filled({"save": "{folder}/" + name, **data, **changed}, folder=str(folder))
        sets = [f"{key}={json.dumps(value)}" for key, value in named.items()]
        plan = prepare_run([folder / "base.yml"], sets, catalog=catalog, resume="auto", machine=MACHINE).plan
        plan = evolve(plan, cluster=evolve(plan.cluster, device="cpu", backend="gloo"))
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
    of_plan = {name for names in OTHERS.values() for name in names if name.partition(".")[0] in read}
    assert {each for each in set(unread) ^ of_plan if not each.startswith("engine.")} == set()


def test_each_key_reaches_a_rank(read: dict[str, dict[str, bool]], tmp_path: Path) -> None:
    known = {f"{kind}.{name}" for kind, fields in read.items() for name, was_read in fields.items() if was_read}
    others = {name for names in OTHERS.values() for name in names}
    assert known & others == set()
    unread: dict[str, set[str]] = {}
    with asking(tmp_path) as ask:
        for key in keys():
            path, value, beside, machine = changes(key)
            if answer_to(ask, path, value, beside, machine)[0] == "acts":
                changed = changed_fields(*(ask(sets, machine).plan for sets in (beside, (*beside, f"{path}={value}"))))
                if not changed <= known | others:
                    unread[f"{key.part}: {path}"] = changed - known - others
    assert unread == {}
