"""Folders that are laid out as GPT-NeoX writes them, in each form of its optimizers."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from gpt_neox_files import KINDS, Run, bound_of, expected, write_run
from neox_checkpoints.importing import import_checkpoint
from neox_checkpoints.neox.format import GPTNeoX

from neox_core.checkpoint.read import CheckpointReader
from neox_core.contracts.optim import planned_shape
from neox_core.errors import CheckpointError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run
from neox_core.plan.stored.state import StoredState, stored_from_plain

RUNS = {
    "1: ZeRO 1 in intervals": Run("stage1", data=2, older_names=True),
    "1: the same with tensor ranks, serial": Run("stage1", tensor=2, data=2, parallel=False, older_names=True),
    "1: a head cut by its inputs": Run("stage1", tensor=2, data=2, older_names=True, rows=True),
    "2: fp16, ZeRO, three data ranks": Run("zero", data=3),
    "2: fp16 without ZeRO, two stages": Run("fused fp16", stages=2),
    "2: bf16, tensor ranks, two stages, tied": Run("zero", "bf16", tensor=2, stages=2, data=2, tied=True),
    "2: fp32 without ZeRO, tensor ranks, two stages, tied": Run("adam", "fp32", tensor=2, stages=2, tied=True),
    "2: without a pipeline, serial": Run("zero", "bf16", data=2, sequential=True, parallel=False),
    "2: norms of queries and keys": Run("zero", data=2, qk_norm=True),
    "2: ZeRO 2, learned positions, stages of unequal length": Run("zero", stages=2, data=2, positions="learned", cut=5),
    "2: alibi, tensor ranks": Run("zero", "bf16", tensor=2, positions="alibi"),
    "2: scalenorm, no positions, tensor ranks": Run("adam", "fp32", tensor=2, norm="scalenorm", positions="none"),
    "2: rmsnorm, sequential, tensor ranks, ZeRO": Run("zero", tensor=2, data=2, norm="rmsnorm", sequential=True),
    "2: four tensor ranks, grouped queries": Run("zero", tensor=4, data=3, kv_heads=4, gated=True),
    "2: fp16 without ZeRO, two stages, tied, learned positions": Run(
        "fused fp16", stages=2, tied=True, positions="learned"
    ),
    "2: fp32 without ZeRO, two stages, tied, learned positions": Run(
        "adam", "fp32", stages=2, tied=True, positions="learned"
    ),
    "2: LLaMA over tensor ranks": Run("adam", "fp32", tensor=2, kv_heads=2, gated=True, parallel=False, biases=False),
}


def imported(folder: Path, out: Path, **options: object) -> CheckpointReader:
    final, _ = import_checkpoint(folder, out, GPTNeoX(), load_plugins(), **options)  # type: ignore[arg-type]  # of the caller
    reader = CheckpointReader(final)
    reader.verify()
    return reader


VERSIONS = {
    **{
        f"{version}: ZeRO": (version, Run("zero", data=3))
        for version in ("0.7.0", "0.7.7", "0.10.3", "0.12.6", "0.15.4")
    },
    "0.7.7: bf16, tensor ranks, two stages": ("0.7.7", Run("zero", "bf16", tensor=2, stages=2, data=2)),
    "0.7.7: without ZeRO": ("0.7.7", Run("fused fp16", stages=2)),
    "0.10.3: sequential": ("0.10.3", Run("zero", data=2, sequential=True)),
    "0.16.5: elastic": ("0.16.5", Run("zero", data=3, elastic=True)),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_every_number_comes_over_from_older_deepspeed(name: str, tmp_path: Path) -> None:
    version, run = VERSIONS[name]
    made = write_run(tmp_path / "theirs", run, version=version)
    _require_all(imported(tmp_path / "theirs", tmp_path / "ours"), run, made)


@pytest.mark.parametrize("name", RUNS)
def test_every_number_comes_over(name: str, tmp_path: Path) -> None:
    run = RUNS[name]
    made = write_run(tmp_path / "theirs", run)
    reader = imported(tmp_path / "theirs", tmp_path / "ours", file_bytes=4000)
    assert reader.manifest.world_size > 1, "in several files"
    _require_all(reader, run, made)


def _require_all(reader: CheckpointReader, run: Run, made: dict[str, dict[str, torch.Tensor]]) -> None:
    """The numbers of every parameter, to the bit."""
    wanted = {kind: expected(run, parts, moments=kind != "master") for kind, parts in made.items()}
    assert set(reader.shapes("weight")) == set(wanted["master"])
    for parameter, master in wanted["master"].items():
        kind = reader.master_kind(parameter)
        assert kind == ("weight" if run.precision == "fp32" else "master")
        torch.testing.assert_close(reader.tensor(kind, parameter), master, rtol=0, atol=0)
        for state in KINDS[1:]:
            found = reader.tensor("state", parameter, state)
            torch.testing.assert_close(found, wanted[state][parameter], rtol=0, atol=0)
        assert reader.tensor("state", parameter, "step").item() == 5


def test_the_moments_of_a_table_of_which_each_rank_has_one_head(tmp_path: Path) -> None:
    """Its part is as wide as a bound of SM3, which has one number for all heads."""
    run = Run("zero", tensor=4, positions="rpe")
    made = write_run(tmp_path / "theirs", run)
    reader = imported(tmp_path / "theirs", tmp_path / "ours")
    root = 2.0  # of the head width, by which GPT-NeoX multiplies the table
    for state, scale in (("exp_avg", 1 / root), ("exp_avg_sq", 1 / root**2)):
        found = reader.tensor("state", "position.weight", state)
        torch.testing.assert_close(found, made[state]["rpe"] * scale, rtol=0, atol=0)


def test_what_blocks_of_the_config_say_at_rest_and_layouts_of_sparse_attention_change_nothing(tmp_path: Path) -> None:
    rests = {"soft_prompt_tuning": {"enabled": False, "num_tokens": 10}, "pack_impl": "packed", "allow_chopped": True}
    write_run(tmp_path / "theirs", Run("zero", config=rests))
    path = tmp_path / "theirs/global_step7/layer_02-model_00-model_states.pt"
    torch.save({**torch.load(path), "attention.sparse_attn.master_layout": torch.ones(4, 2, 2).long()}, path)
    imported(tmp_path / "theirs", tmp_path / "ours")


@pytest.mark.parametrize("form", ["adam", "zero"])
@pytest.mark.parametrize("optimizer", ["Lion", "SGD", "SM3"])
def test_the_state_of_other_optimizers(optimizer: str, form: str, tmp_path: Path) -> None:
    """SM3 has one number for each row and column, which ZeRO's flat vectors do not tell."""
    run = Run(form, "fp32", data=2 if form == "zero" else 1, tensor=2, optimizer=optimizer)
    made = write_run(tmp_path / "theirs", run)
    if (optimizer, form) == ("SM3", "zero"):
        with pytest.raises(CheckpointError, match="SM3"):
            imported(tmp_path / "theirs", tmp_path / "ours")
        return
    reader = imported(tmp_path / "theirs", tmp_path / "ours")
    first, second = (expected(run, made[kind], moments=True) for kind in KINDS[1:])
    called = "momentum_buffer" if optimizer == "SGD" else "momentum"
    for name, wanted in first.items():
        torch.testing.assert_close(reader.tensor("state", name, called), wanted, rtol=0, atol=0)
        for dim in range(second[name].ndim) if optimizer == "SM3" else ():
            bound = reader.tensor("state", name, f"bound_{dim}")
            torch.testing.assert_close(bound, bound_of(second[name], dim), rtol=0, atol=0)


def test_an_optimizer_whose_every_step_was_skipped_starts_with_moments_of_zero(tmp_path: Path) -> None:
    """In fp16 the scale of the loss may fall for some steps first; torch's Adam has no state until one is done."""
    run = Run("zero", data=2, skipped=True)
    made = write_run(tmp_path / "theirs", run)
    reader = imported(tmp_path / "theirs", tmp_path / "ours")
    for name, weight in expected(run, made["master"]).items():
        torch.testing.assert_close(reader.tensor("master", name), weight, rtol=0, atol=0)
        for state in ("exp_avg", "exp_avg_sq"):
            assert not reader.tensor("state", name, state).any()
        assert reader.tensor("state", name, "step") == 0


FOLDERS: dict[str, tuple[tuple[str, ...], str | None, str | None]] = {  # steps, what `latest` says, which is imported
    "several, and one is named": (("global_step3", "global_step7"), "global_step3", "global_step3"),
    "several, and none is named": (("global_step9", "global_step10"), None, "global_step10"),
    "a name of its own": (("before-decay", "global_step7"), "before-decay\n", "before-decay"),
    "one with a name of its own": (("before-decay",), None, "before-decay"),
    "two with names of their own": (("before-decay", "after"), None, None),
    "named, and not there": (("global_step7",), "global_step8", None),
    "a name that leads out": (("global_step7",), "../../elsewhere", "global_step7"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_which_checkpoint_of_a_folder(name: str, tmp_path: Path) -> None:
    steps, latest, wanted = FOLDERS[name]
    write_run(tmp_path / "made", Run("zero"))
    theirs = tmp_path / "theirs"
    for place, step in enumerate(steps):
        shutil.copytree(tmp_path / "made/global_step7", theirs / step)
        (theirs / step / "configs/run.yml").open("a").write(f"log_interval: {place + 1}\n")
    if latest is not None:
        (theirs / "latest").write_text(latest)
    (theirs / "configs").mkdir()
    if wanted is None:
        with pytest.raises(CheckpointError, match=r"global_step8, which is not there|holds 2 checkpoints"):
            GPTNeoX().recognises(theirs)
        return
    assert str(GPTNeoX().recognises(theirs)).endswith(f" in {wanted}")
    imported(theirs, tmp_path / "ours")


def test_a_folder_of_weights_whose_optimizer_was_removed(tmp_path: Path) -> None:
    made = write_run(tmp_path / "theirs", Run("zero", tensor=2, stages=2, data=2))
    for each in (tmp_path / "theirs/global_step7").glob("zero_pp_rank_*"):
        each.unlink()
    final, found = import_checkpoint(tmp_path / "theirs", tmp_path / "ours", GPTNeoX(), load_plugins())
    assert not found.has_optimizer
    assert any("holds no optimizer state" in each for each in found.notes)
    table = CheckpointReader(final).tensor("weight", "embedding.weight")
    torch.testing.assert_close(table, made["master"]["embedding"].half(), rtol=0, atol=0)


def test_progress_comes_over(tmp_path: Path) -> None:
    write_run(tmp_path / "theirs", Run("zero", data=2))
    reader = imported(tmp_path / "theirs", tmp_path / "ours")
    stored: StoredState = stored_from_plain(reader.state(), tmp_path, 7)
    assert (stored.state.step, stored.skipped_steps) == (7, 2)
    assert (stored.state.consumed_samples, stored.state.consumed_tokens) == (7 * 8, 7 * 8 * 8)
    scale = {"cur_scale": 1024.0, "cur_iter": 7, "last_overflow_iter": 3, "cur_hysteresis": 2}
    assert stored.loss_scaler == scale
    assert stored.schedule["lr-decay-iters"] == 100
    assert stored.schedule["optimizer.params.lr"] == 0.001


def test_weights_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "theirs", Run("zero"))
    reader = imported(tmp_path / "theirs", tmp_path / "ours", optimizer=False)
    assert not reader.manifest.has_optimizer
    assert {piece.kind for piece in reader.manifest.pieces} == {"weight", "rng"}


def test_config_of_what_today_s_gpt_neox_computes(tmp_path: Path) -> None:
    """Its own default of gradient_clipping is not passed on to DeepSpeed, whose default is not to clip."""
    write_run(tmp_path / "theirs", Run("zero", config={"gradient_clipping": 1.0, "bias_gelu_fusion": True}))
    imported(tmp_path / "theirs", tmp_path / "ours")
    text = (tmp_path / "ours" / "config.yml").read_text()
    assert "# GPT-NeoX does not clip with gradient_clipping: 1.0\ngradient-clipping: 0.0\n" in text
    assert 'activation: "openai-gelu"\n' in text
    assert "intermediate-size: 24\n" in text


@pytest.mark.parametrize(("steps", "rises"), [(101, True), (100, False)])
def test_a_cosine_that_gpt_neox_would_let_rise_is_said_in_the_config(
    steps: int, *, rises: bool, tmp_path: Path
) -> None:
    write_run(tmp_path / "theirs", Run("zero", config={"train_iters": steps}))
    imported(tmp_path / "theirs", tmp_path / "ours")
    text = (tmp_path / "ours" / "config.yml").read_text()
    assert ("# the rate is then min-lr; GPT-NeoX's cosine rises again\nlr-decay-iters: 100\n" in text) == rises


@pytest.mark.parametrize(
    ("form", "version", "written", "noted"),
    [("stage1", "", 1, False), ("zero", "0.8.2", None, True), ("zero", "0.16.5+91d1c55b", None, False)],
)
def test_the_curve_of_an_older_gpt_neox(
    form: str, version: str, written: int | None, *, noted: bool, tmp_path: Path
) -> None:
    """At a step in the middle: AnnealingLR.get_lr of GPT-NeoX v1.0, and of ea7aefd8, by hand."""
    write_run(tmp_path / "theirs", Run(form, data=2, older_names=form == "stage1"), version=version)
    _, found = import_checkpoint(tmp_path / "theirs", tmp_path / "ours", GPTNeoX(), load_plugins())
    assert found.keys.get("lr-decay-version") == written
    assert any("since September 2023" in each for each in found.notes) == noted
    plan = prepare_run([tmp_path / "ours/config.yml"], start=False, cluster="1x2").plan
    schedule, settings = plan.optim.schedule.load()
    rate = schedule(planned_shape(plan.optim, 100), settings)(41)
    half = math.cos(math.pi * 40 / (100 if written else 99)) + 1
    wanted = 0.001 / 2 * half if written else 0.0001 + 0.0009 / 2 * half
    assert rate == pytest.approx(wanted, rel=1e-9)


def test_lists_of_datasets_come_over(tmp_path: Path) -> None:
    paths = {f"{part}_data_paths": ["one", "two"] for part in ("train", "valid", "test")}
    keys = _keys(Run("zero", config={**paths, "data_path": None, "train_data_weights": [1.0, 2.0]}), tmp_path)
    assert (keys["train-data-paths"], keys["train-data-weights"]) == (["one", "two"], [1.0, 2.0])
    assert not {"split", "data-path"} & keys.keys()


def test_keys_that_the_import_leaves_out_are_named(tmp_path: Path) -> None:
    more = {"sliding_window_width": 4, "z_loss": 0.1, "save": "there", "mlp_multiple_of": 8, "lr_decay_style": "cosine"}
    write_run(tmp_path / "theirs", Run("zero", config=more))
    _, found = import_checkpoint(tmp_path / "theirs", tmp_path / "ours", GPTNeoX(), load_plugins())
    assert "of the run's config these keys are left out; write those that you need: save, z_loss" in found.notes
    assert "sliding-window-width: 4\n" in (tmp_path / "ours" / "config.yml").read_text()


def test_keys_that_gpt_neox_does_not_read_do_not_come_over(tmp_path: Path) -> None:
    """Its model and its batches are without them at v1.0, v2.0 and ea7aefd; here they would change the losses."""
    unread = ("apply_residual_connection_post_layernorm", "reset_attention_mask", "reset_position_ids")
    for value in (True, False):
        folder = tmp_path / str(value)
        write_run(folder / "theirs", Run("zero", config=dict.fromkeys(unread, value)))
        _, found = import_checkpoint(folder / "theirs", folder / "ours", GPTNeoX(), load_plugins())
        assert not {key.replace("_", "-") for key in unread} & found.keys.keys()
        said = [f"{key} is left out: GPT-NeoX reads it nowhere" for key in unread if value]
        assert [each for each in found.notes if "left out" in each] == said


def _keys(run: Run, folder: Path, **options: object) -> dict[str, object]:
    write_run(folder / "theirs", run)
    imported(folder / "theirs", folder / "ours", **options)
    found = [line.partition(": ") for line in (folder / "ours" / "config.yml").read_text().splitlines()]
    return {key: json.loads(value) for key, _, value in found if value and not key.startswith("#")}


def test_each_tensor_rank_moved_a_bias_of_its_own(tmp_path: Path) -> None:
    run = Run("zero", tensor=2)
    rows = [["layers.*.attention.output.bias", 2.0], ["layers.*.mlp.down.bias", 2.0]]
    assert _keys(run, tmp_path / "parallel")["lr-scales"] == rows
    assert "lr-scales" not in _keys(run, tmp_path / "weights", optimizer=False)
    assert "lr-scales" not in _keys(evolve(run, parallel=False), tmp_path / "serial")


def test_a_pipeline_in_fp32_does_not_count_all(tmp_path: Path) -> None:
    clipped = {"deepspeed_extra_args": {"gradient_clipping": 1.0}}
    run = Run("adam", "fp32", stages=2, tied=True, config=clipped)
    second = ("attention.output.bias", "attention_norm.*", "mlp.down.bias", "mlp_norm.*")
    rest = [[f"layers.1.{each}", 0.0] for each in second]
    counted = [["embedding.weight", 2.0], ["final_norm.*", 0.0], *rest]
    assert _keys(run, tmp_path / "clipped")["gradient-norm-counts"] == counted
    learned = _keys(evolve(run, positions="learned"), tmp_path / "learned")
    assert learned["gradient-norm-counts"] == counted, "its copy in the last stage has no gradient"
    assert "gradient-norm-counts" not in _keys(evolve(run, config={}), tmp_path / "free")
    assert "gradient-norm-counts" not in _keys(evolve(run, form="zero"), tmp_path / "zero")


@pytest.mark.parametrize(("version", "scale"), [("0.16.5+91d1c55b", True), ("0.15.4", False), ("0.3.15", False)])
def test_pipelines_add_up_gradients_from_a_version_on(version: str, *, scale: bool, tmp_path: Path) -> None:
    run = Run("zero", config={"train_micro_batch_size_per_gpu": 2})
    write_run(tmp_path / "theirs", run, version=version)
    imported(tmp_path / "theirs", tmp_path / "ours")
    assert ("gradient-scale: 2.0\n" in (tmp_path / "ours" / "config.yml").read_text()) == scale


@pytest.mark.parametrize("command", ["import", "import-neox"])
def test_json_of_the_commands_is_one_object_or_nothing(command: str, tmp_path: Path) -> None:
    write_run(tmp_path / "theirs", Run("zero", data=2))
    words = [sys.executable, "-m", "neox_core", "checkpoint", command, "theirs", "--out", "ours", "--json"]
    how: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run(words, check=False, **how)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["wrote"], found["config"]) == ("ours/step-00000007", "ours/config.yml")
    assert found["has_optimizer"] is True
    again = subprocess.run(words, check=False, **how)
    assert (again.returncode, again.stdout) == (5, "")
    assert again.stderr.startswith("error: ours: exists already\n")
