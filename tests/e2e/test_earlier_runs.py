"""Runs that an earlier version wrote: today's diffs, generates from, exports and resumes them."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors import deserialize

pytestmark = pytest.mark.ranks

STORED = Path(__file__).parents[1] / "data" / "run-format-1"
EXPECTED = json.loads((STORED / "expected.json").read_text())
# By name: ranks, and how far losses of another processor may be.
RUNS = {"plain": (1, 1e-5), "sharded": (2, 1e-3)}


@pytest.fixture(params=RUNS)
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One of the runs, of which the current folder has a copy."""
    shutil.copytree(STORED, tmp_path / "stored")
    monkeypatch.chdir(tmp_path / "stored")
    return str(request.param)


OLDER = ("--set", "lr-decay-version=1")
"""What continues a run of then along its own curve."""


ADDED = {
    "objective.settings.z_loss": 0.0,
    "model.norm.settings.rms_norm_adds_one": False,
    "model.position.settings.rotary_scaling": "none",
    # These act with a scaling only.
    "model.position.settings.rotary_low_freq_factor": 1.0,
    "model.position.settings.rotary_high_freq_factor": 4.0,
    "model.position.settings.rotary_beta_fast": 32.0,
    "model.position.settings.rotary_beta_slow": 1.0,
    "model.position.settings.rotary_truncate": True,
    "checkpoint.background": False,
}
"""Settings that components and blocks have got since, with the value at which they do what was done before."""


def neox(*argv: str, codes: tuple[int, ...] = (0,)) -> str:
    """What the command prints."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "neox_core", *argv], env=env, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode in codes, done.stderr[-4000:]
    return done.stdout


def losses(folder: Path) -> dict[int, float]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


def tensors_digest(file: Path) -> str:
    """Of names, types, shapes and bytes, in the order of the names."""
    whole = hashlib.sha256()
    for name, tensor in sorted(deserialize(file.read_bytes())):
        whole.update(f"{name} {tensor['dtype']} {tensor['shape']}\n".encode() + tensor["data"])
    return whole.hexdigest()


def test_a_run_of_an_earlier_version_has_the_plan_of_its_config(name: str) -> None:
    both = f"configs/base.yml,configs/{name}.yml"
    rows: list[dict[str, Any]] = json.loads(neox("config", "diff", f"runs/{name}", both, "--json", codes=(0, 1)))
    curve = {"path": "optim.schedule.settings.lr_decay_version"}
    rows = [row for row in rows if not curve.items() <= row.items()]
    # what depends on the machine and the installation, and how ranks are started and ended
    here = ("cluster.", "plugins.", "neox_version", "launcher.settings.")
    new = [row for row in rows if row["path"] in ADDED]
    assert {(row["path"], row["b"], row["a_origin"]) for row in new} <= {(*each, "not there") for each in ADDED.items()}
    assert [row["path"] for row in rows if not row["path"].startswith(here) and row not in new] == []


@pytest.mark.parametrize("name", ["plain"], indirect=True)
def test_a_checkpoint_of_an_earlier_version_generates(name: str) -> None:
    words = ("--prompt", "nine and one is", "--temperature", "0", "--max-new-tokens", "24", "--device", "cpu")
    assert neox("generate", "--load", f"runs/{name}", *words).strip() == EXPECTED[name]["text"]


@pytest.mark.parametrize("name", ["sharded"], indirect=True)
def test_a_checkpoint_of_an_earlier_version_is_exported(name: str) -> None:
    neox("checkpoint", "export-hf", f"runs/{name}", "--out", "exported")
    assert tensors_digest(Path("exported/model.safetensors")) == EXPECTED[name]["exported"]


def test_a_run_of_an_earlier_version_resumes_with_its_losses(name: str) -> None:
    ranks, close = RUNS[name]
    folder = Path("runs", name)
    uninterrupted = losses(folder)
    (folder / "metrics.jsonl").unlink()
    configs = ("configs/base.yml", f"configs/{name}.yml", "--set", "device=cpu", "--set", f"num_gpus={ranks}")
    neox("train", *configs, *OLDER, "--resume", "auto")
    resumed = losses(folder)
    assert list(resumed) == [5, 6, 7, 8]
    assert resumed == pytest.approx({step: uninterrupted[step] for step in resumed}, rel=close)
    assert (folder / "latest").read_text().startswith("step-00000008\n")


@pytest.mark.parametrize("name", ["plain"], indirect=True)
def test_a_checkpoint_says_that_it_was_written_under_the_older_curve(name: str) -> None:
    configs = ("configs/base.yml", f"configs/{name}.yml", "--set", "device=cpu", "--set", f"load=runs/{name}")
    rest = subprocess.run(
        [sys.executable, "-m", "neox_core", "config", "check", *configs], capture_output=True, text=True, check=False
    )
    assert rest.returncode == 5
    assert "another learning-rate schedule: lr-decay-version: 1 there, 2 here" in rest.stderr + rest.stdout
