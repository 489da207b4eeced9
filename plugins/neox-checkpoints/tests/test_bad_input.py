"""Folders that are incomplete, damaged or hostile: one error that names the file, and nothing is written."""

import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gpt_neox_files import Run, write_run
from neox_checkpoints.importing import import_checkpoint
from neox_checkpoints.neox.format import GPTNeoX
from neox_checkpoints.pickles import read_pickled

from neox_core.errors import CheckpointError, ConfigError
from neox_core.hooks.loader import load_plugins

LAYER, RANK = "layer_02-model_01-model_states.pt", "mp_rank_01_model_states.pt"
ZERO = "zero_pp_rank_1_mp_rank_00_optim_states.pt"


def _other_run(step: Path) -> None:
    other = step.parent.parent / "other"
    write_run(other, Run("zero", "fp32", tensor=2, data=2), seed=9)
    for path in (other / "global_step7").glob("*model_01-model_states.pt"):
        shutil.copy(path, step / path.name)


def _another_step(step: Path) -> None:
    content = torch.load(step / RANK, weights_only=True)
    torch.save({**content, "iteration": 8}, step / RANK)


def _truncate(step: Path) -> None:
    data = (step / ZERO).read_bytes()
    (step / ZERO).write_bytes(data[: len(data) // 2])


def _truncate_layer(step: Path) -> None:
    data = (step / LAYER).read_bytes()
    (step / LAYER).write_bytes(data[:-200])


def _foreign(step: Path) -> None:
    content = torch.load(step / RANK, weights_only=True)
    torch.save({**content, "args": Harm()}, step / RANK)


def _short(step: Path) -> None:
    """The second half of a group is not there."""
    content = read_pickled(step / ZERO)
    state = content["optimizer_state_dict"]
    for name in ("loss_scaler", "zero_stage", "param_slice_mappings"):  # stand-ins, which cannot be written
        state.pop(name, None)
    state["single_partition_of_fp32_groups"][0] = state["single_partition_of_fp32_groups"][0].detach()[:1].clone()
    torch.save(content, step / "new")  # the tensors are mapped from the file
    (step / "new").replace(step / ZERO)


def _divided(step: Path) -> None:
    for path in [*step.glob("mp_rank_*"), *step.glob("layer_*")]:
        path.unlink()
    for rank in range(2):
        torch.save({}, step / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")


class Harm:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch harmed",)


def _says(step: Path, key: str, *within: object, value: object) -> None:
    """A key of the first rank's file, or one in it, has another value."""
    path = step / RANK.replace("01", "00")
    content = torch.load(path, weights_only=True)
    found = content
    for each in (key, *within)[:-1]:
        found = found[each]
    found[(key, *within)[-1]] = value
    torch.save(content, path)


def _rewrite(step: Path, old: str, new: str) -> None:
    config = step / "configs" / "run.yml"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a rank's layers are missing": (lambda step: (step / LAYER).unlink(), LAYER),
    "a data rank is missing": (lambda step: (step / ZERO.replace("rank_1_", "rank_0_")).unlink(), "zero_pp_rank_0_"),
    "a model rank is missing": (lambda step: (step / "mp_rank_00_model_states.pt").unlink(), "mp_rank_00"),
    "tensor ranks of two runs": (_other_run, "of different runs"),
    "a rank of another step": (_another_step, f"{RANK}: is of another run or step"),
    "half a file": (_truncate, f"{ZERO}: is damaged"),
    "a layer that is cut short": (_truncate_layer, f"{LAYER}: is damaged"),
    "a class of another program": (_foreign, f"{RANK}: names posix.system"),
    "a flat vector that ends early": (_short, ZERO),
    "weights divided among data ranks": (_divided, "ZeRO stage 3"),
    "a wider model": (lambda step: _rewrite(step, "hidden_size: 16", "hidden_size: 32"), "layer_00-model_00"),
    "more layers": (lambda step: _rewrite(step, "num_layers: 2", "num_layers: 3"), "layer_04-model_00"),
    "fewer layers": (lambda step: _rewrite(step, "num_layers: 2", "num_layers: 1"), "layer_0"),
    "experts": (lambda step: _rewrite(step, "num_layers: 2", "num_layers: 2\nuse_mup: true"), "use_mup"),
    "a norm for each rank's heads": (
        lambda step: _rewrite(step, "num_kv_heads", "use_qk_layernorm: true\nnum_kv_heads"),
        "use_qk",
    ),
    "labels": (lambda step: _rewrite(step, "num_kv_heads", "train_label_data_paths: [a]\nnum_kv_heads"), "label"),
    "a schedule without numbers": (lambda step: _says(step, "lr_scheduler", "end_iter", value=[1]), "mp_rank_00"),
    "an engine without numbers": (lambda step: _says(step, "ds_config", "gradient_clipping", value="x"), "mp_rank_00"),
    "a shape that is none": (
        lambda step: _says(step, "param_shapes", 0, "2.mlp.linear1.weight", value=None),
        "mp_rank_00_model_states.pt: the shape of 2.mlp.linear1.weight",
    ),
    "a tensor where none is": (lambda step: _says(step, "ds_version", value=torch.ones(2)), "mp_rank_00"),
    "a list for a number": (lambda step: _rewrite(step, "train_iters: 100", "train_iters: [1]"), "sets train_iters to"),
    "a word for a block": (
        lambda step: _rewrite(step, "optimizer: {", "optimizer: x\nother: {"),
        "sets optimizer to x, not to a block",
    ),
    "samples of another kind": (
        lambda step: _rewrite(step, "num_kv_heads", "pack_impl: unpacked\nnum_kv_heads"),
        "pack_impl",
    ),
    "a prompt that is trained": (
        lambda step: _rewrite(step, "num_kv_heads", "soft_prompt_tuning: {enabled: true}\nnum_kv_heads"),
        "soft_prompt_tuning",
    ),
    "biases for parts of a sample": (
        lambda step: _rewrite(step, "gpt_j_residual: true", "gpt_j_residual: false\nsequence_parallel: true"),
        "sequence_parallel without gpt_j_residual",
    ),
    "no config": (lambda step: shutil.rmtree(step / "configs"), "--config FILE"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_error_that_names_the_file(case: str, tmp_path: Path) -> None:
    write_run(tmp_path / "theirs", Run("zero", "fp32", tensor=2, data=2))
    spoil, said = CASES[case]
    spoil(tmp_path / "theirs" / "global_step7")
    with pytest.raises(CheckpointError) as caught:
        import_checkpoint(tmp_path / "theirs", tmp_path / "ours", GPTNeoX(), load_plugins())
    assert said in f"{caught.value}\n{caught.value.hint}"
    assert not (tmp_path / "ours").exists()


def _hostile(path: Path, data: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3\n")
    return path


def test_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = _hostile(tmp_path / "a.pt", pickle.dumps(Harm(), protocol=2))
    with pytest.raises(CheckpointError, match=r"names (posix|nt)\.system"):
        read_pickled(path)
    assert not (tmp_path / "harmed").exists()


def test_files_that_would_grow(tmp_path: Path) -> None:
    bomb = _hostile(tmp_path / "a.pt", pickle.dumps(bytes(10**7), protocol=2), zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="compressed"):
        read_pickled(bomb)
    wide = tmp_path / "b.pt"
    torch.save({"layer": torch.zeros(1).expand(10**12)}, wide)
    from neox_checkpoints.pickles import require_tensor

    with pytest.raises(CheckpointError, match="not a tensor"):
        require_tensor(read_pickled(wide)["layer"], wide, "layer")


@pytest.mark.parametrize("data", [b"", b"not a zip", b"PK\x03\x04" + bytes(100)])
def test_other_files(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"a\.pt: is damaged"):
        read_pickled(tmp_path / "a.pt")


@pytest.mark.parametrize(
    ("key", "line", "where"),
    [
        ("hidden_dropout", "hidden_dropout: 1.5", r"/configs/run\.yml:\d+:1: error: hidden-dropout: must be"),
        ("optimizer", "optimizer: {type: Adam, params: {lr: 1, eps: -1}}", r"/configs/run\.yml:\d+:\d+: error: "),
        ("data_path", "", r"theirs, in the config that follows from it: error: data-path: is required"),
    ],
)
def test_a_key_that_cannot_be_planned_is_named_in_the_run_s_file(
    key: str, line: str, where: str, tmp_path: Path
) -> None:
    write_run(tmp_path / "theirs", Run("zero"))
    file = tmp_path / "theirs/global_step7/configs/run.yml"
    kept = [each for each in file.read_text().splitlines() if not each.startswith(f"{key}:")]
    file.write_text("\n".join([*kept, line]))
    with pytest.raises(ConfigError) as caught:
        import_checkpoint(tmp_path / "theirs", tmp_path / "ours", GPTNeoX(), load_plugins())
    assert re.search(where, str(caught.value)), str(caught.value)
    assert "config.yml" not in str(caught.value)
    assert not (tmp_path / "ours").exists()
