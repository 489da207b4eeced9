"""Rules of ZeRO that look at more than the values of keys: old spellings, the machine, a pipeline, versions."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from neox_deepspeed.config.rules import offload, zero

from neox_core.config.report import ProblemsError, errors, render
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run

Check = Callable[..., list[str]]


@pytest.fixture
def check(tmp_path: Path, text: str, catalog: Any) -> Check:
    """The errors of the base config with `--set`s, or where there are none its notes."""

    def _check(*sets: str) -> list[str]:
        (tmp_path / "c.yml").write_text(text.replace("type: Adam", "type: AnyStage"))
        try:
            notes = prepare_run([tmp_path / "c.yml"], sets, catalog=catalog, machine=Machine(0, 4)).notes
        except ProblemsError as error:
            notes = tuple(errors(error.problems))
        return [render([each]) for each in notes if "is the old spelling" not in each.message]

    return _check


@pytest.fixture
def libaio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with the header that DeepSpeed compiles its file access against."""
    (tmp_path / "libaio.h").touch()
    monkeypatch.setenv("CPATH", str(tmp_path))


def test_one_offload(check: Check) -> None:
    (said,) = check("zero_optimization={stage: 3, cpu_offload: true}")
    assert (
        "zero_optimization.cpu_offload: is for stages 1 and 2 (use offload_optimizer: {device: cpu} at stage 3)" in said
    )
    (said,) = check("zero_optimization={stage: 2, cpu_offload: true, offload_optimizer: {pin_memory: false}}")
    assert "zero_optimization.cpu_offload: means the same as the block offload_optimizer" in said
    assert check("zero_optimization={stage: 2, cpu_offload: true}") == []


def _no_torch(name: str) -> str:
    raise PackageNotFoundError(name)


@pytest.mark.parametrize("precision", ["bf16", "torch_autocast"])
def test_compiled_layers_learn(check: Check, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    half, compiled, sharded = f"{precision}={{enabled: true}}", "compile=true", "zero_optimization.stage=3"
    monkeypatch.setattr(zero, "version", lambda name: "2.11.0+cu130")
    (said,) = check(half, compiled, sharded)
    assert "compile: torch 2.11.0+cu130 gives compiled layers gradients of 0 at ZeRO stage 3 in 16 bits" in said
    enough = ((compiled, sharded), (half, sharded), (half, compiled, "zero_optimization.stage=2"))
    assert [check(*sets) for sets in enough] == [[], [], []]
    for other in (lambda name: "2.12.0a0+git", _no_torch):
        monkeypatch.setattr(zero, "version", other)
        assert check(half, compiled, sharded) == []


@pytest.mark.parametrize("block", ["offload_param", "offload_optimizer"])
def test_files_need_libaio(check: Check, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = f"zero_optimization={{stage: 3, {block}: {{device: nvme}}}}"
    monkeypatch.setattr(offload, "INCLUDES", ())
    monkeypatch.delenv("CPATH", raising=False)
    (said,) = check(sets)
    assert f"{block}.device: nvme needs libaio, and this machine has no libaio.h (install libaio-dev)" in said
    (tmp_path / "libaio.h").touch()
    monkeypatch.setattr(offload, "INCLUDES", (str(tmp_path),))
    assert check(sets, "aio={queue_depth: 4}") == []


@pytest.mark.usefixtures("libaio")
def test_buffers_hold_a_parameter(check: Check) -> None:
    (said,) = check("zero_optimization={stage: 3, offload_optimizer: {device: nvme, buffer_count: 3}}")
    assert "zero_optimization.offload_optimizer.buffer_count: must be 4 or more, not 3" in said
    assert check("zero_optimization={stage: 3, offload_optimizer: {device: nvme, buffer_count: 4}}") == []


@pytest.mark.usefixtures("libaio")
@pytest.mark.parametrize(
    "extra",
    [
        "aio: {use_gds: true}",
        "zero_optimization: {offload_optimizer: {pipeline_read: true}}",
        "zero_optimization: {offload_optimizer: {pipeline_write: true}}",
    ],
)
def test_files_are_read_in_order(check: Check, extra: str) -> None:
    nvme = "zero_optimization={stage: 3, offload_optimizer: {device: nvme}}"
    (said,) = check(nvme, f"deepspeed_extra_args={{{extra}}}")
    key = extra.rpartition("{")[2].partition(":")[0]
    assert f"{key}: is not available: " in said
    assert (
        check(
            nvme, f"deepspeed_extra_args={{{extra.replace('true', 'false')}}}", "save=out", "save-interval=5", "load=in"
        )
        == []
    )


@pytest.mark.usefixtures("libaio")
def test_whole_weights_are_in_memory(check: Check) -> None:
    """One rank: DeepSpeed puts a weight of 2^18 elements of 4 bytes into a file, and none that is smaller."""
    zero = "zero_optimization={stage: 3, offload_param: {device: nvme}, stage3_param_persistence_threshold: %d}"
    ranks = "num_gpus=1"
    assert check(zero % (2**18 - 1), ranks, "device=cpu") == []
    (said,) = check(zero % 2**18, ranks, "device=cpu")
    assert "stage3_param_persistence_threshold: keeps weights whole on every rank that offload_param puts" in said
    assert check(zero % 2**18, ranks, "device=cpu", "aio.block_size=2097152") == []


@pytest.mark.usefixtures("libaio")
def test_the_second_copy_is_in_memory(check: Check) -> None:
    zero = "zero_optimization={stage: 3, offload_param: {device: %s}, zero_hpz_partition_size: %d}"
    (said,) = check(zero % ("nvme", 2), "num_gpus=2", "device=cpu")
    assert "zero_hpz_partition_size: makes a second copy, which DeepSpeed 0.19.8 cannot put into files" in said
    assert check(zero % ("nvme", 1), "num_gpus=2", "device=cpu") == []
    assert check(zero % ("cpu", 2), "num_gpus=2", "device=cpu") == []


@pytest.mark.usefixtures("libaio")
@pytest.mark.parametrize("device", ["cpu", "none", "nvme"])
@pytest.mark.parametrize(
    ("block", "setting"),
    [
        ("offload_param", "nvme_path: /tmp"),
        ("offload_param", "buffer_count: 6"),
        ("offload_param", "buffer_size: 4096"),
        ("offload_param", "max_in_cpu: 5"),
        ("offload_optimizer", "nvme_path: /tmp"),
        ("offload_optimizer", "buffer_count: 6"),
        ("offload_optimizer", "fast_init: true"),
    ],
)
def test_keys_of_files_need_files(check: Check, device: str, block: str, setting: str) -> None:
    said = check(f"zero_optimization={{stage: 3, {block}: {{device: {device}, {setting}}}}}")
    key = setting.partition(":")[0]
    if device != "nvme":
        (said,) = said
        assert f"note: zero_optimization.{block}.{key}: does nothing with device {device}" in said
    elif key == "fast_init":
        (said,) = said
        assert f"{block}.fast_init: does nothing unless the parameters are in files too" in said
        both = f"zero_optimization={{stage: 3, offload_param: {{device: nvme}}, {block}: {{device: nvme, {setting}}}}}"
        assert check(both) == []
    else:
        assert said == []


def test_nothing_acts_with_device_none(check: Check) -> None:
    (said,) = check("zero_optimization={stage: 3, offload_optimizer: {device: none, pin_memory: false}}")
    assert "offload_optimizer.pin_memory: does nothing with device none (remove it)" in said


@pytest.mark.usefixtures("libaio")
def test_files_are_for_stage_3(check: Check) -> None:
    (said,) = check("zero_optimization={stage: 2, offload_optimizer: {device: nvme}}")
    assert "offload_optimizer.device: nvme needs stage 3, and the stage is 2" in said


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (
            "amp={enabled: true, opt_level: O2}",
            "amp.opt_level: O2 keeps weights in half precision, which amp no longer",
        ),
        ("zero_optimization.grad_hooks=false", "grad_hooks: applies at stage 1 only, and the stage is 0"),
        (
            "zero_optimization={stage: 2, allgather_partitions: false}",
            "allgather_partitions: applies at stage 1 only, and the stage is 2",
        ),
        ("disable_allgather=true", "disable_allgather: applies at stage 1 only, and the stage is 0"),
        ("zero_optimization.allgather_bucket_size=0", "must be even and greater than 0, not 0"),
        ("zero_optimization.allgather_bucket_size=501", "must be even and greater than 0, not 501"),
        ("zero_optimization.reduce_bucket_size=0", "zero_optimization.reduce_bucket_size: must be greater than 0"),
        ("zero_optimization={stage: 1, offload_optimizer: {ratio: 1.1}}", "ratio: must be from 0 to 1, not 1.1"),
        ("zero_optimization={stage: 3, offload_param: {device: disk}}", "device: must be one of 'none', 'cpu', 'nvme'"),
        ("aio.block_size=1000", "aio.block_size: must be a multiple of 512, a disk's sector, not 1000"),
        ("data_types.grad_accum_dtype=fp8", "data_types.grad_accum_dtype: must be one of 'fp32', 'fp16', 'bf16'"),
        ("fp16={enabled: false, loss_scale: -1}", "fp16.loss_scale: must be 0 or more, not -1.0"),
        ("fp16={enabled: false, loss_scale_window: 0}", "fp16.loss_scale_window: must be greater than 0, not 0"),
        ("fp16={enabled: false, min_loss_scale: 0}", "fp16.min_loss_scale: must be greater than 0, not 0"),
        ("gradient_predivide_factor=0", "gradient_predivide_factor: must be greater than 0, not 0"),
    ],
)
def test_values_that_are_refused(check: Check, sets: str, said: str) -> None:
    (found,) = check(sets)
    assert said in found


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("{optimizer: {type: Lamb}}", "optimizer.type: is a key of neox (set optimizer.type itself"),
        ("{zero_optimization: {offload_param: {device: cpu}}}", "offload_param.device: is a key of neox"),
        ("{zero_optimization: true}", "zero_optimization: is a key of neox (set zero_optimization itself"),
        ("{train_step_batch_size: 2}", "train_step_batch_size: is a key of neox"),
        ("{elasticity: {enabled: false}}", "elasticity: is not a key that DeepSpeed"),
        (
            "{log_lewel: debug}",
            "log_lewel: is not a key that DeepSpeed 0.19.8 uses in a run of neox (did you mean log_level?)",
        ),
    ],
)
def test_extra_args_that_are_refused(check: Check, extra: str, said: str) -> None:
    (found,) = check(f"deepspeed_extra_args={extra}")
    assert said in found


def test_extra_args_reach_the_engine_beside_our_keys(tmp_path: Path, text: str, catalog: Any) -> None:
    (tmp_path / "c.yml").write_text(text)
    extra = "deepspeed_extra_args={log_level: warning, zero_optimization: {override_module_apply: false}}"
    engine = prepare_run([tmp_path / "c.yml"], [extra], catalog=catalog, machine=Machine(0, 4)).plan.engine
    assert engine["log_level"] == "warning"
    assert engine["zero_optimization"]["override_module_apply"] is False
    assert engine["zero_optimization"]["stage"] == 0
