"""Which folder holds a checkpoint, and whose: ours, GPT-NeoX's, transformers'."""

import os
from pathlib import Path

import pytest

from neox_core.errors import CheckpointError
from neox_core.plan.stored.saved import LATEST, MANIFEST, find_checkpoint


def gpt_neox(folder: Path) -> Path:
    """The names of a checkpoint as GPT-NeoX writes them."""
    (folder / "global_step10/configs").mkdir(parents=True)
    (folder / LATEST).write_text("global_step10")
    for name in ("mp_rank_00_model_states.pt", "layer_00-model_00-model_states.pt", "configs/config.yml"):
        (folder / "global_step10" / name).write_bytes(b"PK")
    return folder


@pytest.mark.parametrize("part", ["", "global_step10", "no latest", "only latest"])
def test_a_checkpoint_of_gpt_neox_is_recognised(tmp_path: Path, part: str) -> None:
    folder = gpt_neox(tmp_path)
    if part == "no latest":
        (folder / LATEST).unlink()
    if part == "only latest":
        (folder / "global_step10").rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="checkpoints of GPT-NeoX") as caught:
        find_checkpoint(folder / "global_step10" if part == "global_step10" else folder)
    assert "import-neox" in caught.value.hint
    assert "delete" not in str(caught.value)


def test_a_checkpoint_of_transformers_is_recognised(tmp_path: Path) -> None:
    for name in ("config.json", "model-00001-of-00002.safetensors"):
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(CheckpointError, match="checkpoint of transformers") as caught:
        find_checkpoint(tmp_path)
    assert f"import-hf {tmp_path}" in caught.value.hint


def test_a_folder_beside_those_of_gpt_neox_still_finds_ours(tmp_path: Path) -> None:
    (gpt_neox(tmp_path) / LATEST).unlink()
    (tmp_path / "step-00000004").mkdir()
    (tmp_path / "step-00000004" / MANIFEST).write_text("{}")
    assert find_checkpoint(tmp_path) == tmp_path / "step-00000004"


@pytest.mark.parametrize("content", ["", "step-1", "../../etc", "x" * 100_000])
def test_latest_of_another_form_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / LATEST).write_text(content)
    with pytest.raises(CheckpointError, match="is not the name of a checkpoint"):
        find_checkpoint(tmp_path)


def test_latest_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LATEST)
    with pytest.raises(CheckpointError, match="it is not a file"):
        find_checkpoint(tmp_path)


def test_a_folder_without_a_checkpoint_has_none(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path) is None
    assert find_checkpoint(tmp_path / "gone") is None
