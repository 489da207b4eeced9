"""Older spellings: what each turns into, that it is said, and that it may not contradict its successor."""

from pathlib import Path
from typing import Any

import pytest
from neox_author.testing import load_only

from neox_core.config.dialects import modernise
from neox_core.config.read.load import Loaded, load

REGISTRY = load_only("neox-gpt-neox").registry


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def _read(text: str) -> Loaded:
        (tmp_path / "c.yml").write_text(text)
        return modernise(load([tmp_path / "c.yml"]), REGISTRY)

    return _read


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("geglu: true", {"activation": "geglu"}),
        ("openai-gelu: true", {"activation": "openai-gelu"}),
        ("rms-norm: true", {"norm": "rmsnorm"}),
        ("sinusoidal_pos_emb: true", {"pos_emb": "sinusoidal"}),
        ("batch-size: 4", {"train_micro_batch_size_per_gpu": 4}),
        ("lr: 0.1", {"optimizer": {"params": {"lr": 0.1}, "type": "Adam"}}),  # GPT-NeoX's own
        ("lr: 0.1\noptimizer: {type: Lion}", {"optimizer": {"params": {"lr": 0.1}, "type": "Lion"}}),
        ("use_wandb: true", {"wandb": {"enabled": True, "project": "neox"}}),
        ("vocab-file: v", {"vocab_file": "v", "tokenizer_type": "GPT2BPETokenizer"}),
        ("adam-beta1: 0.8", {"optimizer": {"params": {"betas": [0.8, 0.999]}}}),
        ("adam-beta2: 0.95", {"optimizer": {"params": {"betas": [0.9, 0.95]}}}),
        ("adam-beta1: 0.8\nadam-beta2: 0.95", {"optimizer": {"params": {"betas": [0.8, 0.95]}}}),
        ("adam-eps: 1e-6", {"optimizer": {"params": {"eps": 1e-6}}}),
        ("loss-scale: 128", {"fp16": {"loss_scale": 128}}),
        ("loss-scale-window: 10", {"fp16": {"loss_scale_window": 10}}),
        ("min-scale: 2", {"fp16": {"min_loss_scale": 2}}),
        ("hysteresis: 3", {"fp16": {"hysteresis": 3}}),
    ],
)
def test_an_older_spelling_is_read_as_its_successor_with_a_note(
    read: Any, tmp_path: Path, written: str, values: Any
) -> None:
    loaded = read(written)
    assert loaded.values == values
    assert {problem.severity for problem in loaded.problems} == {"note"}
    assert all(problem.where.startswith(f"{tmp_path}/c.yml:") for problem in loaded.problems)


# In GPT-NeoX, `torch.profiler.schedule(wait=start, warmup=1, active=stop - start)` records the steps counted from 1
@pytest.mark.parametrize(
    ("written", "values", "severity"),
    [
        ("profile: true", {"profile": {"first": 11, "last": 12}}, "note"),
        ("memory_profiling: true", {"profile": {"first": 11, "last": 12}}, "note"),
        (
            "profile: true\nprofile_step_start: 3\nprofile_step_stop: 9\nmemory_profiling_path: there\ntrain-iters: 7",
            {"train_iters": 7, "profile": {"first": 4, "last": 7}},
            "note",
        ),
        ("profile: true\ntrain-iters: 10", {"train_iters": 10}, "note"),
        ("profile: false\nprofile_step_start: 3\nprofile_step_stop: 9", {}, "note"),
        ("profile: {first: 2}", {"profile": {"first": 2}}, None),
        ("profile: 3", {}, "error"),
        ("profile: true\nprofile_step_stop: -1", {}, "error"),
    ],
)
def test_keys_that_profile_steps(read: Any, written: str, values: Any, severity: str | None) -> None:
    loaded = read(written)
    assert {problem.severity for problem in loaded.problems} == ({severity} if severity else set())
    if severity != "error":
        assert loaded.values == values


@pytest.mark.parametrize("written", ["geglu: false", "rms-norm: false", "loss-scale: null", "lr: null"])
def test_an_older_spelling_at_rest_says_nothing(read: Any, written: str) -> None:
    loaded = read(written)
    assert loaded.values == {}
    assert not loaded.problems


@pytest.mark.parametrize(
    "written",
    [
        "rms-norm: true\nnorm: layernorm",
        "geglu: true\nopenai-gelu: true",
        "lr: 0.1\noptimizer: {params: {lr: 0.2}}",
        "adam-beta1: 0.8\noptimizer: {params: {betas: [0.9, 0.95]}}",
        "batch-size: 4\ntrain_micro_batch_size_per_gpu: 8",
        "hysteresis: 3\nfp16: {hysteresis: 2}",
        "deepspeed_slurm: true\nlauncher: openmpi",
        "clip_grad: 1.0\ngradient_clipping: 0.5",
    ],
)
def test_a_contradiction_names_both_places(read: Any, tmp_path: Path, written: str) -> None:
    errors = [problem for problem in read(written).problems if problem.severity == "error"]
    assert len(errors) == 1
    assert "differs from" in errors[0].message
    places = errors[0].where + errors[0].message
    assert f"{tmp_path}/c.yml:1:" in places
    assert f"{tmp_path}/c.yml:2:" in places


@pytest.mark.parametrize(
    "written",
    [
        "rms-norm: true\nnorm: rmsnorm",
        "adam-beta1: 0.9\noptimizer: {params: {betas: [0.9, 0.95]}}",
        "batch-size: 4\ntrain_micro_batch_size_per_gpu: 4",
    ],
)
def test_agreement_is_a_note(read: Any, written: str) -> None:
    loaded = read(written)
    assert [problem.severity for problem in loaded.problems] == ["note"]


def test_a_switch_that_is_off_leaves_others_alone(read: Any) -> None:
    assert not read("rms-norm: false\nnorm: scalenorm").problems


def test_a_switch_is_true_or_false(read: Any) -> None:
    (problem,) = read("geglu: 'yes'").problems
    assert problem.message == "must be true or false, not 'yes'"
    assert problem.severity == "error"


def test_the_old_key_is_where_the_value_came_from(read: Any, tmp_path: Path) -> None:
    loaded = read("seed: 1\nadam-eps: 1e-6\n")
    assert loaded.where("optimizer.params.eps") == f"{tmp_path}/c.yml:2:1"
    assert loaded.spelled("optimizer.params.eps") == "adam-eps"


def test_a_block_that_is_no_block_is_left_to_its_reader(read: Any) -> None:
    loaded = read("optimizer: Adam\nlr: 0.1\n")
    assert loaded.values == {"optimizer": "Adam"}


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("rpe: true", {"pos_emb": "rpe"}),
        ("onebitadam: true", {"optimizer": {"type": "OneBitAdam"}}),
        ("cpu-optimizer: true", {"optimizer": {"type": "CPU_Adam"}}),
        ("cpu_torch_adam: true", {"optimizer": {"type": "CPU_torch_adam"}}),
        ("fp32_allreduce: true", {"communication_data_type": "fp32"}),
        ("disable-allgather: true", {"zero_optimization": {"allgather_partitions": False}}),
        ("zero_optimization: true", {"zero_optimization": {"stage": 1}}),
        (
            "zero-optimization: {stage: 1, cpu-offload: true}",
            {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}},
        ),
        (
            "zero_optimization: {cpu_offload_params: true}",
            {"zero_optimization": {"offload_param": {"device": "cpu"}}},
        ),
        ("precision: bfloat16", {"bf16": {"enabled": True}}),
        ("precision: fp16", {"fp16": {"enabled": True}}),
        ("contigious-checkpointing: true", {"contiguous_checkpointing": True}),
        ("DDP-impl: torch", {}),
        ("deepspeed_mpi: false", {}),
        ("lazy-mpu-init: false", {}),
        ("rpe-causal: true", {}),
        ("use_wandb: true\nwandb: {project: ours}", {"wandb": {"enabled": True, "project": "ours"}}),
        ("wandb_project: neox", {"wandb": {"project": "neox"}}),
        ("wandb_group: sizes", {"wandb": {"group": "sizes"}}),
        ("wandb_team: us", {"wandb": {"team": "us"}}),
        ("wandb_host: https://api.wandb.ai", {}),
        ("wandb_init_all_ranks: false", {}),
        ("use_comet: true", {"comet": {"enabled": True}}),
        ("comet_workspace: us", {"comet": {"workspace": "us"}}),
        ("comet_project: neox", {"comet": {"project": "neox"}}),
        ("comet_experiment_name: one", {"comet": {"experiment_name": "one"}}),
        ("deepspeed_slurm: true", {"launcher": "slurm"}),
        ("gas: 4", {"gradient_accumulation_steps": 4}),
        ("clip-grad: 0.5", {"gradient_clipping": 0.5}),
        ("bf16: {bf16: true}", {"bf16": {"enabled": True}}),
        ("bf16: {loss_scale: 0}", {}),
        ("do_train: false", {}),
        ("world_size: 4", {}),
    ],
)
def test_more_older_spellings(read: Any, written: str, values: Any) -> None:
    loaded = read(written)
    assert loaded.values == values
    assert [problem.severity for problem in loaded.problems] == ["note"]


@pytest.mark.parametrize(
    "written",
    [
        "rpe: false",
        "zero_optimization: false",
        "zero_optimization: {cpu_offload: false}",
        "precision: fp32",
        "onnx-safe: null",
        "fp32-allreduce: false",
    ],
)
def test_more_older_spellings_at_rest(read: Any, written: str) -> None:
    loaded = read(written)
    assert loaded.values == {}
    assert not [problem for problem in loaded.problems if problem.severity == "error"]


@pytest.mark.parametrize(
    "written",
    [
        "rms-norm: false\nnorm: rmsnorm",
        "cpu-optimizer: false\noptimizer: {type: CPU_torch_adam}",
        "onebitadam: true\noptimizer: {type: Adam}",
        "precision: fp32\nfp16: {enabled: true}",
        "fp32-allreduce: true\ncommunication_data_type: fp16",
        "precision: fp16\nprecision: bfloat16".replace("\nprecision", "\nfp16: {enabled: false} #"),
    ],
)
def test_a_switch_that_is_off_contradicts_what_it_switched(read: Any, written: str) -> None:
    (problem,) = (problem for problem in read(written).problems if problem.severity == "error")
    assert "differs from" in problem.message


def test_the_two_switches_of_the_host_optimizer_agree(read: Any) -> None:
    loaded = read("cpu-optimizer: true\ncpu_torch_adam: true")
    assert loaded.values == {"optimizer": {"type": "CPU_torch_adam"}}
    assert {problem.severity for problem in loaded.problems} == {"note"}


def test_onnx_safe_is_an_activation_unless_another_comes_first(read: Any) -> None:
    assert read("onnx-safe: true").values == {"activation": "erf-gelu"}
    assert read("onnx-safe: true\nopenai-gelu: true").values == {"activation": "openai-gelu"}
    assert read("onnx-safe: false").values == {}


@pytest.mark.parametrize(
    "written",
    [
        "rpe-causal: false",
        "DDP-impl: apex",
        "precision: int8",
        "deepspeed_mpi: true",
        "lazy-mpu-init: true",
        "wandb_host: https://wandb.example.org",
        "wandb_run_name: one",
        "wandb_init_all_ranks: true",
    ],
)
def test_what_has_no_successor_is_an_error_with_the_reason(read: Any, written: str) -> None:
    (problem,) = read(written).problems
    assert problem.severity == "error"
    assert problem.key == written.partition(":")[0]
