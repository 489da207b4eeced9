"""Keys that have nothing to do beside others are noted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from neox_core.plan.cluster import Machine

Check = Callable[..., list[str]]
CPU, GPU = Machine(0, 4), Machine(2, 4)


def test_a_disk_of_a_host_serves_a_run_on_one_host(check: Check, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=1\nb slots=1\n")
    sets = (f"hostfile={tmp_path}/hosts", "checkpoint.use_node_local_storage=true")
    (said,) = check(*sets)
    assert "error: checkpoint.use_node_local_storage: the 2 hosts of this run write one folder" in said
    (said,) = check(*sets, "num_nodes=1")
    assert "note: checkpoint.use_node_local_storage: changes nothing" in said


@pytest.mark.parametrize(
    ("idle", "why", "acts"),
    [
        (("fp16={enabled: true, loss_scale: 8, hysteresis: 3}",), "fp16.hysteresis: does nothing: loss_scale is 8", ()),
        (("init-method-std=0.1",), "", ()),
        (
            ("init-method-std=0.1", "init-method=small_init", "output-layer-init-method=wang_init"),
            "init-method-std: does nothing: small_init and wang_init set their own standard deviations",
            ("output-layer-init-method=scaled_normal",),
        ),
        (
            ("attention-softmax-in-fp32=true",),
            "attention-softmax-in-fp32: does nothing: the whole model is in fp32",
            ("torch_autocast.enabled=true",),
        ),
        (("zero_allow_untested_optimizer=true",), "does nothing: Adam is tested at ZeRO stage 0", ()),
        (("zero_force_ds_cpu_optimizer=true",), "does nothing: no optimizer state is offloaded", ()),
        (("eval-interval=5", "eval-iters=0"), "eval-interval: does nothing: eval-iters is 0", ("eval-iters=1",)),
        (
            ("sample-prompt=a",),
            "does nothing: there is no tokenizer-type",
            ("tokenizer-type=HFTokenizer", "vocab-file=a"),
        ),
        (("attention-softmax-in-fp32=false", "zero_allow_untested_optimizer=false"), "", ()),
        (
            ("prescale_gradients=true",),
            "prescale_gradients: does nothing: one data-parallel rank sends no gradients",
            ("num_gpus=2",),
        ),
        (("gradient_predivide_factor=2",), "does no more than round: one data-parallel rank", ("num_gpus=2",)),
        (("communication_data_type=bf16",), "does nothing: one data-parallel rank", ("zero_optimization.stage=1",)),
        (
            ("zero_optimization={stage: 1, reduce_bucket_size: 1e6}",),
            "reduce_bucket_size: does no more than size a buffer: one data-parallel rank",
            ("num_gpus=2",),
        ),
        (
            ("zero_optimization={stage: 2, overlap_comm: true}",),
            "overlap_comm: does nothing: one data-parallel rank",
            ("zero_optimization.offload_optimizer.device=cpu", "optimizer.type=CPU_Adam"),
        ),
        (
            ("zero_optimization={stage: 3, stage3_prefetch_bucket_size: 7}",),
            "stage3_prefetch_bucket_size: does nothing: one data-parallel rank has all weights",
            ("num_gpus=2", "optimizer.type=CPU_Adam"),
        ),
        (
            ("zero_optimization={stage: 3, stage3_max_live_parameters: 7}",),
            "stage3_max_live_parameters: does nothing: one data-parallel rank has all weights",
            ("zero_optimization.offload_param.device=cpu", "optimizer.type=CPU_Adam"),
        ),
        (
            ("zero_optimization={stage: 3, stage3_max_reuse_distance: 7}",),
            "stage3_max_reuse_distance: does nothing: one data-parallel rank has all weights",
            ("num_gpus=2", "optimizer.type=CPU_Adam"),
        ),
        (
            ("zero_optimization={stage: 3, stage3_param_persistence_threshold: 7}",),
            "stage3_param_persistence_threshold: does nothing: one data-parallel rank has all weights",
            ("zero_optimization.offload_param.device=cpu", "optimizer.type=CPU_Adam"),
        ),
    ],
)
def test_a_key_with_nothing_to_do_is_noted(
    check: Check, idle: tuple[str, ...], why: str, acts: tuple[str, ...]
) -> None:
    machine = GPU if "fp16" in idle[0] else CPU
    stage = ("zero_optimization.stage=1",) if machine is GPU else ()
    said = [each for each in check(*idle, *stage, machine=machine) if ": does no" in each]
    assert len(said) == bool(why)
    assert all(why in each for each in said)
    assert not acts or not any(": does no" in each for each in check(*idle, *acts, machine=machine))


def test_owners_of_whole_parameters_average_as_at_stage_0(check: Check) -> None:
    owned = ("optimizer.type=Rowwise", "zero_optimization.stage=1")
    assert check(*owned, "prescale_gradients=true", "num_gpus=4", "pipe-parallel-size=2") == []
    (said,) = check(*owned, "zero_optimization.allgather_bucket_size=1e6")
    assert "does nothing where ranks own whole parameters" in said
