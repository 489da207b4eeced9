"""A run that resumes is compared with its checkpoint when the config is checked."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from neox_core.config.problem import Problem
from neox_core.config.report import ProblemsError, errors
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import to_plain
from neox_core.plan.stored.saved import sealed
from neox_core.plan.stored.schedule import schedule_terms

CONFIG = """
num-layers: 2
hidden-size: 64
num-attention-heads: 4
max-position-embeddings: 32
seq-length: 32
data-path: tokens
data-impl: mmap
padded-vocab-size: 256
train-iters: 100
train_micro_batch_size_per_gpu: 4
engine: plain
optimizer: {type: Adam, params: {lr: 1.0e-3}}
load: saved
"""
Check = Callable[..., tuple[Problem, ...]]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """What is said of a run with some `--set` that resumes from a run at step 2 without them."""
    monkeypatch.chdir(tmp_path)
    for name in ("tokens.bin", "tokens.idx"):
        Path(name).write_bytes(b"")
    Path("c.yml").write_text(CONFIG)
    plan = prepare_run([Path("c.yml")], start=False).plan
    folder = Path("saved/step-00000002")
    folder.mkdir(parents=True)
    state = {"step": 2, "consumed_samples": 8, "consumed_tokens": 256}
    stored = {
        "state.json": json.dumps({"state": state, "schedule": schedule_terms(plan.optim)}).encode(),
        "run.json": json.dumps(to_plain(plan)).encode(),
    }
    seals = {name: {"size": len(text), "sha256": sha256(text).hexdigest()} for name, text in stored.items()}
    for name, text in {**stored, "manifest.json": sealed({"files": seals})}.items():
        (folder / name).write_bytes(text)

    def _check(*sets: str) -> tuple[Problem, ...]:
        return prepare_run([Path("c.yml")], sets, start=False, checked=True).notes

    return _check


def test_the_same_run_resumes(check: Check) -> None:
    assert [each for each in check() if "saved" in each.message] == []


def test_a_key_that_changes_numbers_is_a_warning_at_its_place(check: Check) -> None:
    (said,) = (each for each in check("seed=9") if "the losses change" in each.message)
    assert (said.key, said.where, said.severity) == ("seed", "--set", "warning")
    assert said.message.startswith("is 9, and was 1234 in the run that wrote saved/step-00000002")


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["hidden-size=96"], r"was made for another model: .*hidden-size is 64 there, 96 here"),
        (["train_micro_batch_size_per_gpu=8"], "was written with 4 samples a step on 1 rank, and this run takes 8"),
        (["lr-decay-style=constant"], "has another learning-rate schedule"),
        (["load=gone"], "gone: no checkpoint to resume from"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_does_not_fit_stops_the_run_as_a_checkpoint_does(check: Check, sets: list[str], said: str) -> None:
    with pytest.raises(ProblemsError, match=said) as caught:
        check(*sets)
    assert caught.value.exit_code == 5


def test_errors_of_two_kinds_stop_it_as_a_config_does(check: Check) -> None:
    Path("hosts").write_text("worker-1 slots=1")
    with pytest.raises(ProblemsError, match="gone: no checkpoint") as caught:
        check("load=gone", "hostfile=hosts", "launcher=local")
    assert (len(errors(caught.value.problems)), caught.value.exit_code) == (2, 2)
