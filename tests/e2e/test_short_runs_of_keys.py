"""Each key that changes a value of the plan changes what can be observed of a run of three steps on one rank.

Most keys are changed as tests/helpers/changed_keys.py changes them; `VALUES` and `BESIDE` say how to see one within so
few steps. `ELSEWHERE` names the tests that see what such a run cannot show. A key that only the engine's values take,
or that is noted or refused, has its answer in tests/unit/plan/test_no_silent_key.py. The keys of plugins that are not
in `PARTS` are not tried.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from attrs import frozen
from changed_keys import ENCODER, beside_of, keys, value_of
from neox_author.testing import build, load_only
from neox_reference.keys import Key
from plan_answers import Sets, changed_fields

from neox_core.config.report import ProblemsError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import Resolved, prepare_run
from neox_core.plan.runfile import write_runfile

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).parents[2]
BASE = """{
"device": "cpu", "num_gpus": 1, "engine": "plain", "num_workers": 0, "data_impl": "mmap", "peak_tflops": 1,
"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 16, "max_position_embeddings": 16,
"padded_vocab_size": 64, "hidden_dropout": 0.1, "optimizer": {"type": "Adam", "params": {"lr": 1e-2}},
"train_micro_batch_size_per_gpu": 2, "train_iters": 3, "save_interval": 3, "log_interval": 1,
"eval_interval": 2, "eval_iters": 1
}"""
PARTS = (
    *("architecture gpt", "architecture bert", "objective causal-lm", "objective masked-lm"),
    *("norm layernorm", "norm rmsnorm", "position rpe", "model change lora", "callback ema"),
    *("monitor csv_monitor", "monitor tensorboard", "scheduler WarmupLR"),
    *(f"optimizer {each}" for each in ("Adam", "AdamW", "Adagrad", "Adamax", "Adadelta", "NAdam", "Lion", "SM3")),
    *(f"lr schedule {each}" for each in ("constant", "cosine", "linear", "exponential", "staged")),
)
"""Of which the keys are tried, besides those of the sections of the core."""
AROUND: dict[str, Sets] = {
    **dict.fromkeys(("architecture bert", "objective masked-lm"), ENCODER),
    "model change lora": ("lora.enabled=true",),
    "callback ema": ("ema.enabled=true",),
}
"""Part -> what stands beside each of its keys but the one that switches it on."""
TEXT = (
    *("data_impl=text", "data_path={folder}/text.jsonl", "split=100,0,0", "eval_iters=0", "append_eod=true"),
    *("tokenizer_type=HFTokenizer", "vocab_file={folder}/tokenizer.json", "eod_token=b"),
)
SPLITS = ("train", "valid", "test")
BLEND = tuple(f"{each}_data_paths=[{{folder}}/tokens, {{folder}}/more]" for each in SPLITS)
WEIGHTED = (*BLEND, *(f"{each}_data_weights=[1.0, 1.0]" for each in SPLITS), "eval_iters=4")
RESUMED = ("load={folder}/run0", "train_iters=6", "override_lr_scheduler=true")
LONG = ("seq_length=64", "max_position_embeddings=64")
VALUES = {
    "split": "50,25,25",
    "seq_length": "8",
    "padded_vocab_size": "128",
    **{f"{each}_data_weights": "[3.0, 1.0]" for each in SPLITS},
    "weighted_sampler_alpha": "0.0",
    "train_batch_size": "4",
    "train_micro_batch_size_per_gpu": "1",
    "rampup_batch_size": "[2, 2, 8]",
    "train_iters": "2",
    "eval_iters": "2",
    "eval_interval": "1",
    "log_interval": "2",
    "sample_prompt": "a",
    "warmup": "0.5",
    "lr_decay_iters": "2",
    "min_lr": "5e-3",
    "gradient_clipping": "0.01",
    "save": "{folder}/elsewhere",
    "save_interval": "1",
    "extra_save_iters": "[1]",
    "load": "{folder}/run0",
    "hidden_size": "32",
    "hidden_dropout": "0.2",
    "head_dim": "4",
    "intermediate_size": "8",
    "max_position_embeddings": "32",
    "sliding_window_width": "4",
    "embedding_multiplier": "2.0",
    "sparse_attention": "{block: 4}",
    **dict.fromkeys(("layernorm_epsilon", "rms_norm_epsilon"), "1e-2"),
    "rpe_max_distance": "12",
    "lora.target_modules": "[mlp.up]",
    "lora.rank": "2",
    "ema.decay": "0.5",
    "optimizer.params.eps": "1e-2",
    "optimizer.params.weight_decay": "0.5",
    **dict.fromkeys(("csv_monitor.output_path", "tensorboard.output_path", "tensorboard_dir"), "other"),
}
"""Key -> a value with an effect within so few steps; the others have that of changed_keys.py."""
BESIDE: dict[str, Sets] = {
    **{f"{each}_data_weights": WEIGHTED for each in SPLITS},
    "weight_by_num_documents": BLEND,
    "weighted_sampler_alpha": (*BLEND, "weight_by_num_documents=true", "train_iters=20"),
    "make_vocab_size_divisible_by": (*TEXT, "padded_vocab_size=null"),
    **dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "sample_prompt"), TEXT),
    "rampup_batch_size": ("gradient_accumulation_steps=4",),
    "scheduler.type": ("scheduler={type: WarmupDecayLR, params: {warmup_num_steps: 1}}", "train_iters=6"),
    "load": RESUMED[1:],
    **dict.fromkeys(("finetune", "no_load_optim"), RESUMED),
    **dict.fromkeys(("save", "save_interval", "extra_save_iters"), ()),
    "keep_last_n_checkpoints": ("save_interval=1",),
    "param_sharing_style": ("num_layers=4", "num_unique_layers=2"),
    "sparse_attention": ("sparsity=all", *LONG),
    "rpe_num_buckets": ("pos_emb=rpe",),
    "rpe_max_distance": ("pos_emb=rpe", "rpe_num_buckets=8"),
    "tensorboard_dir": ("tensorboard.enabled=true",),
}
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "tests/unit/plan/test_cluster.py": (
        *("hostfile", "include", "exclude", "num_nodes", "num_gpus", "device", "distributed_backend", "local_rank"),
        *("master_addr", "master_port"),
    ),
    "plugins/neox-launchers/tests/test_hosts.py": ("launcher",),
    "tests/unit/plan/test_problems.py": ("detect_nvlink_pairs",),
    "tests/e2e/test_run_ends.py": ("stall_timeout", "on_nonfinite_loss"),
    "tests/e2e/test_layouts.py": (
        *("pipe_parallel_size", "model_parallel_size", "sequence_parallel", "distribute_checkpointed_activations"),
        *("partition_activations", "contiguous_checkpointing"),
    ),
    "plugins/neox-deepspeed/tests/test_partition.py": ("pipe_partition_method",),
    "tests/unit/data/test_data.py": ("num_workers",),
    "tests/unit/plan/test_resolve.py": ("data_impl",),
    "plugins/neox-tokenizers/tests/test_tokenizers.py": ("tokenizer_type",),
    "tests/unit/checkpoint/test_checkpoint.py": ("override_lr_scheduler", "use_checkpoint_lr_scheduler"),
    "plugins/neox-plain/tests/test_peak.py": ("peak_tflops",),
    "plugins/neox-gpt/tests/test_compile.py": ("compile",),
    "plugins/neox-gpt/tests/test_gpt.py": ("attention_softmax_in_fp32", "apply_query_key_layer_scaling"),
    "plugins/neox-kernels/tests/test_choose.py": ("kernels",),
    "plugins/neox-gpt/tests/test_recompute.py": (
        *("checkpoint_activations", "checkpoint_num_layers", "deepspeed_activation_checkpointing"),
        *("synchronize_each_layer", "profile_backward", "activation_checkpointing"),
    ),
    "tests/helpers/rule_cases/recomputation.py": ("checkpoint_in_cpu",),
    "tests/unit/plan/test_attention.py": ("attention_config",),
}
"""File of tests -> keys that need several ranks, another engine, a GPU, or time, or that change no number by design."""
WORDS = {
    "pipe_parallel_size": '"pipe"',
    "model_parallel_size": '"tensor"',
    "tokenizer_type": "HFTokenizer",
    **dict.fromkeys(("override_lr_scheduler", "use_checkpoint_lr_scheduler"), "schedule_from"),
    "checkpoint_activations": "recompute",
    "checkpoint_num_layers": "layers",
    "deepspeed_activation_checkpointing": "deepspeed=True",
    "partition_activations": "partition",
    "contiguous_checkpointing": "contiguous",
    "synchronize_each_layer": "synchronize=True",
    "profile_backward": "profile=True",
    "activation_checkpointing": "num_checkpoints",
    "distribute_checkpointed_activations": "distribute",
    "apply_query_key_layer_scaling": "query_key_layer_scaling",
}
"""The word of a plan by which its tests know a key, where that is another one."""
SAID = "said.txt"
"""What a run writes to its terminal, where a busy machine may add a line."""
AGAIN, REHEARSAL = ("num_workers=0",), ("train_iters=3",)
PLACES = {"CheckpointPlan.save", "CheckpointPlan.load", "RunPlan.run_dir"}


@frozen
class Job:
    """A key, and the names of a run without its change and of one with it."""

    path: str
    before: str
    after: str


def make_data(folder: Path) -> None:
    """Two datasets of tokens, a text, and a tokenizer for it."""
    writer = load_only("neox-data-indexed").find("data backend", "mmap")
    draw = np.random.default_rng(0)
    for name, number in (("tokens", 200), ("more", 40)):
        tokens = writer.load()(build(writer)).create(folder / name, 64)
        for _ in range(number):
            tokens.add_document(draw.integers(0, 60, 20).tolist())
        tokens.close()
    lines = (json.dumps({"text": 12 * "a " + str(each)}) + "\n" for each in range(200))
    (folder / "text.jsonl").write_text("".join(lines))
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    (folder / "base.json").write_text(BASE)


def beside(key: Key) -> Sets:
    """What stands beside a key in its two runs."""
    around = () if key.path.endswith(".enabled") else AROUND.get(key.part, ())
    return (*around, *BESIDE.get(key.path, beside_of(key)))


def elsewhere(path: str) -> bool:
    names = {name for keys_of in ELSEWHERE.values() for name in keys_of}
    return path in names or path.partition(".")[0] in names


def tried(key: Key) -> bool:
    return (key.part.startswith("section ") or key.part in PARTS) and not elsewhere(key.path)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, start: Any) -> tuple[list[Job], dict[str, Any]]:
    """The keys that were changed, and what was observed of each run."""
    folder = tmp_path_factory.mktemp("runs")
    make_data(folder)
    catalog = load_plugins()
    runs: dict[Sets, Resolved] = {}

    def resolve(sets: Sets) -> Resolved:
        if sets not in runs:
            data = () if any("data_path" in each for each in sets) else ("data_path={folder}/tokens", "split=80,10,10")
            last = {each.partition("=")[0]: each for each in (f"save={{folder}}/run{len(runs)}", *data, *sets)}
            texts = [each.replace("{folder}", str(folder)) for each in last.values()]
            runs[sets] = prepare_run(
                [folder / "base.json"], texts, catalog=catalog, resume="auto", machine=Machine(0, 4)
            )
        return runs[sets]

    for sets in ((), AGAIN, REHEARSAL):
        resolve(sets)
    jobs = []
    for key in filter(tried, keys()):
        before = beside(key)
        after = (*before, f"{key.path}={VALUES.get(key.path) or value_of(key)}")
        try:
            one, other = resolve(before), resolve(after)
        except ProblemsError:
            continue  # it is refused
        said = [each for each in other.notes if each not in one.notes]
        moved = {each for each in changed_fields(one.plan, other.plan) - PLACES if not each.startswith("engine.")}
        if not any(each.key.replace("-", "_") == key.path for each in said) and (moved or key.path in ("save", "load")):
            jobs.append((f"{key.part}: {key.path}", before, after))
    names = {sets: f"run{number}" for number, sets in enumerate(runs)}
    files = {}
    for sets in (REHEARSAL, *runs):
        if sets in {(), AGAIN, REHEARSAL, *(each for _, *both in jobs for each in both)}:
            files[names[sets]] = str(folder / names[sets] / "run.json")
            write_runfile(runs[sets].plan, Path(files[names[sets]]))
    start("short_runs.py", folder, files)
    found = {name: json.loads((folder / f"{name}.json").read_text()) for name in files if name != names[REHEARSAL]}
    return [Job(path, names[before], names[after]) for path, before, after in jobs], found


def test_the_same_run_is_observed_to_be_the_same(seen: tuple[list[Job], dict[str, Any]]) -> None:
    found = seen[1]
    assert found["run0"]["ended"] == 0
    one, other = ({key: each for key, each in found[run].items() if key != SAID} for run in ("run0", "run1"))
    assert one == other


def test_each_key_changes_what_is_observed(seen: tuple[list[Job], dict[str, Any]]) -> None:
    jobs, found = seen
    assert [job.path for job in jobs if found[job.before]["ended"] or found[job.after]["ended"]] == []
    assert [job.path for job in jobs if found[job.after] == found[job.before]] == []
    assert len(jobs) > 180


@pytest.mark.parametrize("test", ELSEWHERE)
def test_the_test_of_a_key_names_it(test: str) -> None:
    text = (ROOT / test).read_text(encoding="utf-8")
    unnamed = [key for key in ELSEWHERE[test] if not re.search(WORDS.get(key, key).replace("_", "[-_]"), text)]
    assert unnamed == []
