"""One rank by itself, the schedules of 0/1 Adam, and what a config may say."""

import pytest
import torch
from neox_author.testing import assert_light, build, check_optimizer, load_only
from neox_onebit.exchange import block_size
from neox_onebit.zeroone import exchanges, updates_variance

from neox_core.config.report import ProblemsError
from neox_core.errors import CheckpointError
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run

GLOO = {"comm_backend_name": "gloo"}
CPU = Machine(num_cuda=0, num_cores=2)
BASE = """
num-layers: 1
hidden-size: 32
num-attention-heads: 2
seq-length: 16
max-position-embeddings: 16
padded-vocab-size: 64
data-path: none
train-iters: 100
train_micro_batch_size_per_gpu: 1
"""
GIVEN = "freeze_step: 20, cuda_aware: false, comm_backend_name: gloo"


def test_listing_imports_no_torch():
    assert_light("neox-onebit")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("OneBitAdam", {}),
        ("OneBitAdam", {"freeze_step": 3}),
        ("OneBitAdam", {"compatibility": "deepspeed"}),
        ("ZeroOneAdam", {}),
        ("OneBitLamb", {"bias_correction": False}),
    ],
)
def test_optimizer_contract(name, settings):
    """With freeze_step 3, but for a parameter whose first gradient comes after that: it has no variance."""
    if settings.get("freeze_step") == 3:
        with pytest.raises(Exception, match="first gradient after the variance is frozen"):
            check_optimizer(load_only("neox-onebit"), name, lr=0.05, **GLOO, **settings)
    else:
        check_optimizer(load_only("neox-onebit"), name, lr=0.05, **GLOO, **settings)


@pytest.mark.parametrize(
    ("shapes", "block"),
    [
        ([(8192, 192), (576, 192), (192, 512), (192,)], 192),  # an embedding, attention, the second of an MLP, a norm
        ([(50304, 768), (3072, 768), (768, 3072)], 384),
        ([(3, 4, 5), (50304, 5120)], 512),
        ([(256, 100), (9, 192)], 512),  # no part of 100 is a multiple of 32
        ([(256, 96)], 512),  # scales would be more than a fifth
        ([(700,)], 512),
        ([], 512),
    ],
)
def test_a_scale_is_of_numbers_of_one_row_of_the_embedding(shapes, block):
    assert block_size([torch.Size(shape) for shape in shapes]) == block


def test_errors_of_other_blocks_are_refused():
    entry = load_only("neox-onebit").find("optimizer", "OneBitAdam")
    optimizer = entry.load()([{"params": [torch.nn.Parameter(torch.zeros(6, 160))]}], build(entry, **GLOO))
    with pytest.raises(CheckpointError, match="in blocks of 512 numbers, not of 160"):
        optimizer.load_own_state([{"worker_error": torch.zeros(2, 512)}])


@pytest.mark.parametrize("scaler", [1, 3, 16])
def test_intervals_of_variance_updates_double(scaler):
    expected, step = [], 1
    for j in range(6 * scaler):
        expected.append(step)
        step += 2 ** (j // scaler)
    assert [each for each in range(1, step) if updates_variance(each, scaler)] == expected


@pytest.mark.parametrize(("scaler", "longest"), [(10, 16), (1000, 16), (7, 5), (1, 1), (32678, 16)])
def test_ranks_meet_at_least_every_longest_steps(scaler, longest):
    steps = [each for each in range(1, 40 * min(scaler, 100)) if exchanges(each, scaler, longest)]
    gaps = [b - a for a, b in zip([0, *steps], steps, strict=False)]
    assert max(gaps) <= longest
    assert steps[: min(scaler, 100)] == list(range(1, min(scaler, 100) + 1))
    if scaler == 1000:
        assert set(gaps[1000:1400]) == {2}  # from step 1001 on
    if (scaler, longest) == (10, 16):
        assert steps[10:16] == [12, 14, 16, 18, 20, 24]


def resolved(tmp_path, text, *sets, machine=CPU):
    file = tmp_path / "config.yml"
    file.write_text(BASE + text)
    return prepare_run([file], sets, machine=machine, start=False)


def refusal(tmp_path, text, *sets):
    with pytest.raises(ProblemsError) as caught:
        resolved(tmp_path, text, *sets)
    return str(caught.value)


def adam(extra=GIVEN):
    return f"optimizer: {{type: OneBitAdam, params: {{lr: 0.01, {extra}}}}}\n"


def test_it_warms_up_and_decays_in_a_straight_line(tmp_path):
    plan = resolved(tmp_path, adam() + "warmup: 0.1\nlr-decay-iters: 80").plan
    assert plan.optim.schedule.name == "WarmupDecayLR"
    assert plan.optim.schedule.settings["warmup_num_steps"] == 8
    assert plan.optim.schedule.settings["total_num_steps"] == 80
    assert plan.optim.lr == 0.01
    assert "neox-lr" in plan.plugins
    other = resolved(tmp_path, adam().replace("OneBitAdam", "OneBitLamb")).plan
    assert other.optim.schedule.name == "linear"


def test_a_scheduler_that_is_written_is_the_one(tmp_path):
    plan = resolved(tmp_path, adam() + "scheduler: {type: WarmupLR, params: {warmup_num_steps: 5}}").plan
    assert plan.optim.schedule.name == "WarmupLR"
    assert plan.optim.schedule.settings["warmup_num_steps"] == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr-decay-style: cosine", "lr-decay-style: OneBitAdam runs with WarmupDecayLR"),
        ("min-lr: 1e-4", "min-lr: OneBitAdam runs with WarmupDecayLR"),
        ("zero_optimization: {stage: 1}", "OneBitAdam runs at stage 0 only, not at 1"),
        ("zero_optimization: {stage: 1}\nzero-allow-untested-optimizer: true", "OneBitAdam runs at stage 0 only"),
        ("num-gpus: 2\npipe-parallel-size: 2", "exchanges between whole models"),
        ("num-gpus: 2\nmodel-parallel-size: 2", "needs whole parameters"),
    ],
)
def test_what_does_not_go_with_it_is_refused(tmp_path, text, said):
    assert said in refusal(tmp_path, adam() + text)


def test_its_keys_have_to_be_written(tmp_path):
    assert "OneBitAdam needs freeze_step, cuda_aware, comm_backend_name" in refusal(tmp_path, "onebitadam: true")
    assert "OneBitAdam needs cuda_aware" in refusal(tmp_path, adam("freeze_step: 9, comm_backend_name: gloo"))
    old = f"onebitadam: true\noptimizer: {{params: {{lr: 0.01, {GIVEN}}}}}"
    assert resolved(tmp_path, old).plan.optim.optimizer.name == "OneBitAdam"


def test_the_backend_is_compared(tmp_path):
    said = refusal(tmp_path, adam(GIVEN.replace("gloo", "nccl")))
    assert "optimizer.params.comm_backend_name: is nccl, and the ranks talk over gloo" in said
    assert "comm_backend_name: must be one of" in refusal(tmp_path, adam(GIVEN.replace("gloo", "pigeon")))
    gpu = Machine(num_cuda=2, num_cores=8)
    assert resolved(tmp_path, adam(GIVEN.replace("gloo", "nccl")), machine=gpu).plan.cluster.backend == "nccl"


def test_cuda_aware_is_for_a_library_that_carries_nothing_here(tmp_path):
    def noted(text):
        return [problem.message for problem in resolved(tmp_path, adam(text)).notes if "cuda_aware" in problem.key]

    assert noted(GIVEN) == []
    (said,) = noted(GIVEN.replace("cuda_aware: false", "cuda_aware: true"))
    assert said == "does nothing: it is for an MPI library, and the exchange goes over gloo"
    assert "must be one of 'nccl', 'gloo'" in refusal(tmp_path, adam(GIVEN.replace("gloo", "hccl")))


def test_deepspeeds_form_has_no_floor(tmp_path):
    text = f"{GIVEN}, compatibility: deepspeed"
    assert resolved(tmp_path, adam(text))
    said = refusal(tmp_path, adam(text + ", variance_floor: 0.01"))
    assert "optimizer.params.variance_floor: has no part in compatibility: deepspeed" in said


def test_errors_of_the_other_form_are_refused():
    entry = load_only("neox-onebit").find("optimizer", "OneBitAdam")
    settings = build(entry, compatibility="deepspeed", **GLOO)
    optimizer = entry.load()([{"params": [torch.nn.Parameter(torch.zeros(6, 160))]}], settings)
    with pytest.raises(CheckpointError, match="are not those of compatibility: deepspeed"):
        optimizer.load_own_state([{"worker_error": torch.zeros(2, 512)}])


def test_other_precisions_than_fp16_are_warned_of(tmp_path):
    def warned(text, machine=CPU):
        kind = GIVEN if machine is CPU else GIVEN.replace("gloo", "nccl")
        notes = resolved(tmp_path, adam(kind) + text, machine=machine).notes
        return [each.message for each in notes if each.severity == "warning" and "OneBitAdam" in each.message]

    assert warned("")
    assert warned("bf16: {enabled: true}")
    assert not warned("fp16: {enabled: true}", Machine(num_cuda=1, num_cores=8))


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ("freeze_step: 9", "a running mean with 0.9 takes 10 steps, and freeze_step is 9"),
        ("freeze_step: 10, factor_min: 5", "factor_min: 5.0 is more than factor_max 4.0"),
        ("freeze_step: 10, min_coeff: 11", "min_coeff: 11.0 is more than max_coeff 10.0"),
        ("freeze_step: 0", "freeze_step: must be >= 1"),
    ],
)
def test_bounds_of_lamb(tmp_path, params, said):
    text = f"optimizer: {{type: OneBitLamb, params: {{lr: 0.01, comm_backend_name: gloo, {params}}}}}\n"
    assert said in refusal(tmp_path, text)
    good = "optimizer: {type: OneBitLamb, params: {lr: 0.01, comm_backend_name: gloo, freeze_step: 10}}\n"
    assert resolved(tmp_path, good)


def test_defaults_are_the_documents():
    entry = load_only("neox-onebit").find("optimizer", "ZeroOneAdam")
    settings = build(entry)
    assert (settings.local_step_scaler, settings.local_step_clipper) == (32678, 16)
