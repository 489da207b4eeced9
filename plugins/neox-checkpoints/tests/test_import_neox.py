"""Folders that are laid out as GPT-NeoX writes them, in each form of its optimizers."""

from pathlib import Path

import pytest
import torch
from gpt_neox_files import KINDS, Run, expected, write_run
from neox_checkpoints.importing import import_checkpoint
from neox_checkpoints.neox.format import GPTNeoX

from neox_core.checkpoint.read import CheckpointReader
from neox_core.checkpoint.state import StoredState, stored_from_plain
from neox_core.hooks.loader import load_plugins

RUNS = {
    "1: ZeRO 1 in intervals": Run("stage1", data=2, older_names=True),
    "1: the same with tensor ranks, serial": Run("stage1", tensor=2, data=2, parallel=False, older_names=True),
    "2: fp16, ZeRO, three data ranks": Run("zero", data=3),
    "2: fp16 without ZeRO, two stages": Run("fused fp16", stages=2),
    "2: bf16, tensor ranks, two stages, tied": Run("zero", "bf16", tensor=2, stages=2, data=2, tied=True),
    "2: fp32 without ZeRO, tensor ranks, two stages, tied": Run("adam", "fp32", tensor=2, stages=2, tied=True),
    "2: without a pipeline, serial": Run("zero", "bf16", data=2, sequential=True, parallel=False),
    "2: norms of queries and keys": Run("zero", data=2, qk_norm=True),
    "2: LLaMA over tensor ranks": Run("adam", "fp32", tensor=2, kv_heads=2, gated=True, parallel=False, biases=False),
}


def imported(folder: Path, out: Path, **options: object) -> CheckpointReader:
    final, _ = import_checkpoint(folder, out, GPTNeoX(), load_plugins(), **options)  # type: ignore[arg-type]
    reader = CheckpointReader(final)
    reader.verify()
    return reader


@pytest.mark.parametrize("name", RUNS)
def test_every_number_comes_over(name: str, tmp_path: Path) -> None:
    run = RUNS[name]
    made = write_run(tmp_path / "theirs", run)
    reader = imported(tmp_path / "theirs", tmp_path / "ours", file_bytes=4000)
    wanted = {kind: expected(run, parts, moments=kind != "master") for kind, parts in made.items()}
    assert set(reader.shapes("weight")) == set(wanted["master"])
    assert reader.manifest.world_size > 1, "in several files"
    for parameter, master in wanted["master"].items():
        kind = reader.master_kind(parameter)
        assert kind == ("weight" if run.precision == "fp32" else "master")
        torch.testing.assert_close(reader.tensor(kind, parameter), master, rtol=0, atol=0)
        for state in KINDS[1:]:
            found = reader.tensor("state", parameter, state)
            torch.testing.assert_close(found, wanted[state][parameter], rtol=0, atol=0)
        assert reader.tensor("state", parameter, "step").item() == 5


def test_progress_comes_over(tmp_path: Path) -> None:
    write_run(tmp_path / "theirs", Run("zero", data=2))
    reader = imported(tmp_path / "theirs", tmp_path / "ours")
    stored: StoredState = stored_from_plain(reader.state(), tmp_path)
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


def test_keys_that_the_import_leaves_out_are_named(tmp_path: Path) -> None:
    more = {"sliding_window_width": 4, "z_loss": 0.1, "save": "there", "mlp_multiple_of": 8, "lr_decay_style": "cosine"}
    write_run(tmp_path / "theirs", Run("zero", config=more))
    _, found = import_checkpoint(tmp_path / "theirs", tmp_path / "ours", GPTNeoX(), load_plugins())
    assert "of the run's config these keys are left out; write those that you need: save, z_loss" in found.notes
    assert "sliding-window-width: 4\n" in (tmp_path / "ours" / "config.yml").read_text()
