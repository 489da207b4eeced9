"""`neox plan` beside the plans that it stands for, closed forms by hand, and published runs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from click.testing import CliRunner
from neox_plan.api import foreseen, known_gpu
from neox_plan.command import plan as command
from neox_plan.gpus import GPUS
from neox_plan.layout import Layout, held_by, layout_of, memory_of, parameters_of, with_layout
from neox_plan.search import as_sets
from neox_plan.step import step_of, traffic

from neox_core.contracts.architecture import ModelSize
from neox_core.errors import NeoxError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import Resolved, prepare_run

BASE: dict[str, Any] = {
    "num-layers": 8,
    "hidden-size": 256,
    "num-attention-heads": 8,
    "seq-length": 128,
    "max-position-embeddings": 128,
    "padded-vocab-size": 1024,
    "data-path": "none",
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "train-iters": 10,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1},
    "launcher": "slurm",
}


def resolve(folder: Path, cluster: str = "1x8", sets: tuple[str, ...] = (), **more: Any) -> Resolved:
    (folder / "c.json").write_text(json.dumps(BASE | more))
    return prepare_run([folder / "c.json"], sets, catalog=load_plugins(), start=False, cluster=cluster)


def called(folder: Path, *arguments: str, **more: Any) -> str:
    (folder / "c.json").write_text(json.dumps(BASE | more))
    done = CliRunner().invoke(command, [str(folder / "c.json"), *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(
    "layout",
    [
        Layout(2, 1, 2, 1, recompute=False),
        Layout(1, 4, 4, 1, recompute=True),
        Layout(4, 1, 1, 3, recompute=False),
        Layout(2, 2, 8, 1, recompute=True),
        Layout(1, 1, 8, 2, recompute=False),
    ],
)
def test_a_layout_is_the_plan_of_its_keys(tmp_path: Path, layout: Layout) -> None:
    """The variant of a plan holds what the plan of a config with these keys holds."""
    resolved = resolve(tmp_path)
    planned = resolve(tmp_path, sets=as_sets(layout.keys(), resolved))
    varied = with_layout(resolved.plan, layout)
    assert varied is not None
    assert layout_of(planned.plan) == layout
    assert varied.batch == planned.plan.batch
    assert memory_of(resolved, varied, held_by(resolved, varied)) == planned.memory


@pytest.mark.parametrize("layout", [Layout(3, 1, 1, 1, recompute=False), Layout(1, 1, 16, 1, recompute=False)])
def test_ranks_and_batches_that_cannot_be_divided_are_left_out(tmp_path: Path, layout: Layout) -> None:
    assert with_layout(resolve(tmp_path).plan, layout) is None


def test_what_travels_is_counted_as_by_hand(tmp_path: Path) -> None:
    """Tensor 2, pipeline 2, data 2: 16 passes of 2 x 128 tokens of width 256, in 2 bytes; 4 layers a stage."""
    resolved = resolve(tmp_path, **{"model-parallel-size": 2, "pipe-parallel-size": 2})
    assert isinstance(resolved.size, ModelSize)
    assert resolved.plan.batch.gradient_accumulation == 16
    sent = traffic(resolved.plan, resolved.size, 1_000_000)
    activations = 2 * 128 * 256 * 2
    assert sent.tensor == 4 * 4 * 16 * activations  # an all-reduce between two ranks sends the whole tensor once
    assert sent.pipeline == 2 * 16 * activations
    assert sent.data == 2 * 1_000_000  # the reduce-scatter and the all-gather of half of it each, in 2 bytes


def test_zero_3_gathers_weights_twice_in_each_pass(tmp_path: Path) -> None:
    resolved = resolve(tmp_path, zero_optimization={"stage": 3})
    assert isinstance(resolved.size, ModelSize)
    sent = traffic(resolved.plan, resolved.size, 1_000_000)
    passes = resolved.plan.batch.gradient_accumulation
    assert (sent.tensor, sent.pipeline) == (0, 0)
    assert sent.data == pytest.approx((2 * passes + 1) * 7 / 8 * 2_000_000)


PUBLISHED = (  # heads, hidden, layers, tensor, pipeline, GPUs, batch, micro-batch, TFLOP/s
    (24, 2304, 24, 1, 1, 32, 512, 4, 137),
    (48, 6144, 40, 8, 1, 256, 1024, 4, 135),
    (96, 12288, 80, 8, 8, 1536, 2304, 2, 148),
)


@pytest.mark.parametrize("row", PUBLISHED)
def test_published_steps_are_met_within_a_tenth(tmp_path: Path, row: tuple[int, ...]) -> None:
    """Narayanan et al. 2021 (arXiv:2104.04473), table 1, in TFLOP/s of an A100 with what is recomputed."""
    heads, hidden, layers, tensor, pipeline, gpus, batch, micro, published = row
    shape = {"num-layers": layers, "hidden-size": hidden, "num-attention-heads": heads, "seq-length": 2048}
    shape |= {"max-position-embeddings": 2048, "padded-vocab-size": 51200, "checkpoint-activations": True}
    shape |= {"model-parallel-size": tensor, "pipe-parallel-size": pipeline}
    shape |= {"train_batch_size": batch, "train_micro_batch_size_per_gpu": micro}
    resolved = resolve(tmp_path, f"{gpus // 8}x8", **shape)
    assert isinstance(resolved.size, ModelSize)
    step = step_of(resolved.plan, resolved.size, parameters_of(resolved, resolved.plan), GPUS["A100"])
    assert 4 / 3 * step.flops / step.seconds / 1e12 == pytest.approx(published, rel=0.1)


def test_flops_are_six_for_each_weight_and_attention(tmp_path: Path) -> None:
    """8 layers of 12 h^2 weights and 12 h s of attention, and the head."""
    found = json.loads(called(tmp_path, "--json"))
    assert found["flops_per_token"] == 8 * (6 * 12 * 256**2 + 12 * 256 * 128) + 6 * 1024 * 256
    size = resolve(tmp_path).size
    assert isinstance(size, ModelSize)
    assert sum(found["parameters"].values()) == size.num_parameters
    assert (found["tokens"], found["total_tokens"], found["seconds"]) == (64 * 128, 10 * 64 * 128, None)


def test_a_changed_key_makes_fit_what_did_not(tmp_path: Path) -> None:
    big = {"num-layers": 32, "hidden-size": 4096, "num-attention-heads": 32, "padded-vocab-size": 51200}
    big |= {"seq-length": 2048, "max-position-embeddings": 2048, "train_micro_batch_size_per_gpu": 8}
    found = json.loads(called(tmp_path, "--on", "1x8:A100-40GB", "--json", **big))
    assert found["fits"] is False
    assert 1 <= len(found["fixes"]) <= 3
    for fix in found["fixes"]:
        sets = [f"{key}={str(value).lower()}" for key, value in fix.items()]
        again = json.loads(
            called(tmp_path, "--on", "1x8:A100-40GB", "--json", *(f"--set={each}" for each in sets), **big)
        )
        assert again["fits"] is True, fix
    assert all(each["memory"]["weights"] for each in found["best"])
    times = [each["step"]["products"] for each in found["best"]]
    assert len(times) == 3


def test_one_host_needs_no_login_and_two_do(tmp_path: Path) -> None:
    """What is not there yet on one host has no factor by which it grows."""
    said = called(tmp_path, "--on", "1x8:H100", launcher="pdsh")
    assert "start: 9 connections to the first host" in said
    assert "logins" not in said
    assert "start: 2 logins by ssh" in called(tmp_path, "--on", "2x8:H100", launcher="pdsh")


def test_the_lines_say_it_in_words(tmp_path: Path) -> None:
    said = called(tmp_path, "--on", "1x8:H100", "--mfu", "40")
    assert "parameters: 6.61 M: mlp 4.2 M, attention 2.11 M" in said
    assert "at an MFU of 40 %" in said
    assert "\nfits: " in said
    assert "\n1. tensor 1, pipeline 1" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--on", "1x8:\x1b[31mH1000"), r"no GPU '.{1,8}\[31mH1000' is known"),
        (("--on", "1x8:"), "names no GPU after the colon"),
        (("--on", "8:H100"), "HOSTSxGPUS"),
        (("--on", ""), "HOSTSxGPUS"),
        (("--on", ":H100"), "HOSTSxGPUS"),
        (("--on", "100000x8:H100"), "at most 99999x999"),
        (("--mfu", "40"), "--mfu needs a GPU"),
        *((("--on", "1x8:H100", "--mfu", mfu), "above 0 and at most 100") for mfu in ("nan", "inf", "0", "-1", "101")),
    ],
)
def test_a_mistake_is_one_error(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(NeoxError, match=message):
        called(tmp_path, *arguments)


def test_it_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps(BASE))
    code = (
        "import sys; from neox_plan.command import plan;"
        "plan(sys.argv[1:], standalone_mode=False); sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "c.json"), "--on", "1x8:H100"], check=True, cwd=tmp_path)


def test_the_model_of_a_step_knows_the_bubble(tmp_path: Path) -> None:
    """(p - 1) / m of the time of products and tensor links: arXiv:2104.04473, section 2.2.1."""
    resolved = resolve(tmp_path, **{"pipe-parallel-size": 4})
    assert isinstance(resolved.size, ModelSize)
    step = step_of(resolved.plan, resolved.size, 1, GPUS["H100"])
    passes = resolved.plan.batch.gradient_accumulation
    assert step.bubble == pytest.approx(3 / passes * (step.products + step.tensor))
    more = evolve(resolved.plan, batch=evolve(resolved.plan.batch, gradient_accumulation=2 * passes))
    assert step_of(more, resolved.size, 1, GPUS["H100"]).bubble == pytest.approx(step.bubble / 2)


def test_the_gpu_of_this_machine_is_known_by_its_name() -> None:
    """What nvidia-smi says of it, with its own memory; another GPU is unknown."""
    found = known_gpu("NVIDIA A100-SXM4-40GB, 40960\nNVIDIA A100-SXM4-40GB, 40960\n")
    assert found == evolve(GPUS["A100"], gib=40)
    assert known_gpu("NVIDIA H100 80GB HBM3, 81559\n") == evolve(GPUS["H100"], gib=81559 / 1024)
    assert known_gpu("NVIDIA GeForce RTX 3060, 12288\n") is None
    assert known_gpu("NVIDIA H100, [N/A]\n") is None


def test_a_run_with_another_batch_is_foreseen(tmp_path: Path) -> None:
    resolved = resolve(tmp_path)
    found = foreseen(resolved, micro_batch=4, accumulation=3, zero=2, gpu=GPUS["H100"])
    more = {"train_batch_size": 96, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}
    again = resolve(tmp_path, **more)
    assert found is not None
    assert found.memory == again.memory
    assert isinstance(again.size, ModelSize)
    assert found.step == step_of(again.plan, again.size, parameters_of(again, again.plan), GPUS["H100"])
