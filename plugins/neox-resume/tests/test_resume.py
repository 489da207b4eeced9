"""A run that resumes is compared with its checkpoint when the config is checked."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from neox_core.config.problem import Problem
from neox_core.config.report import ProblemsError, errors
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import to_plain
from neox_core.plan.stored.saved import sealed
from neox_core.plan.stored.schedule import schedule_terms
from neox_core.plan.stored.state import StoredState, TrainState, stored_to_plain

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
FOLDER = Path("saved/step-00000002")
Check = Callable[..., tuple[Problem, ...]]


def write_state(content: Any) -> None:
    """A state.json of step 2, with a manifest that fits it."""
    (FOLDER / "state.json").write_text(json.dumps(content))
    files = {name: (FOLDER / name).read_bytes() for name in ("state.json", "run.json")}
    seals = {name: {"size": len(text), "sha256": sha256(text).hexdigest()} for name, text in files.items()}
    piece = {"kind": "own", "name": "0/error"}  # of an optimizer with state of each rank
    (FOLDER / "manifest.json").write_bytes(sealed({"format": 1, "step": 2, "files": seals, "pieces": [piece]}))


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """What is said of a run with some `--set` that resumes from a run at step 2 without them."""
    monkeypatch.chdir(tmp_path)
    for name in ("tokens.bin", "tokens.idx"):
        Path(name).write_bytes(b"")
    Path("c.yml").write_text(CONFIG)
    plan = prepare_run([Path("c.yml")], start=False).plan
    FOLDER.mkdir(parents=True)
    (FOLDER / "run.json").write_text(json.dumps(to_plain(plan)))
    state = TrainState(step=2, consumed_samples=8, consumed_tokens=256, data_rounds=(400,))
    write_state(
        stored_to_plain(StoredState(state, schedule_terms(plan.optim), {}, "0.1.0", 0, {}, [{}, {}], ("error",)))
    )

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


SKIPPED = {"at": 2, "to": 0, "first": 4, "last": 6, "by": "guard"}


@pytest.mark.parametrize(
    ("part", "key", "value", "said"),
    [
        ("state", "step", "2", "expected int @ .*step"),
        ("state", "step", 4, "at step 2 by its manifest, at step 4 by state.json"),
        ("state", "consumed_tokens", -1, "must be >= 0"),
        ("state", "data_hash", 1.5, "expected int .* @ .*data_hash"),
        ("state", "data_rounds", [16, 8], "8 samples are read, of an order of 16, 8"),
        ("state", "data_rounds", [4], "8 samples are read, of an order of 4"),
        ("state", "data_rounds", [8, 10**12], "must be <= 68719476736"),
        ("state", "data_contents", {"train": [5]}, "expected str @ "),
        ("state", "interventions", [{**SKIPPED, "first": 6}], "from step 2 to 0, without samples 6 to 6"),
        ("state", "interventions", [{**SKIPPED, "to": 3}], "from step 2 to 3"),
        ("state", "interventions", [{**SKIPPED, "last": 2**62}], "of an order of 400"),
        ("state", "callbacks", [], "expected a mapping @ .*callbacks"),
        ("state", "unknown", 1, "extra fields found"),
        (None, "skipped_steps", 3, "3 of 2 steps are skipped"),
        (None, "plugins", {"neox-adam": 1}, "expected str @ .*plugins"),
        (None, "loss_scaler", {"cur_scale": -1.0}, "cur_scale cannot be '-1.0'"),
        (None, "loss_scaler", {"cur_iter": "x"}, "cur_iter cannot be 'x'"),
        (None, "options", [{"lr": 5.0}, {}], "'lr' cannot be '5.0'"),
        (None, "options", [{"step": [1]}, {}], r"'step' cannot be '\[1\]'"),
        (None, "options", [{"weight_decay": float("nan")}, {}], "'weight_decay' cannot be 'nan'"),
        (None, "options", [{"eps": "x"}, {}], "has 'x' as the optimizer's eps, which is"),
        (None, "own", 5, "expected tuple.* @ .*own"),
        (None, "own", [], "differ about what each rank's optimizer kept for itself: error"),
        (None, "own", ["error", "x"], "kept for itself: x"),
    ],
)
def test_a_state_that_no_run_wrote_is_refused_before_a_rank_starts(
    check: Check, part: str | None, key: str, value: Any, said: str
) -> None:
    content = json.loads((FOLDER / "state.json").read_text())
    (content if part is None else content[part])[key] = value
    write_state(content)
    with pytest.raises(ProblemsError, match=said) as caught:
        check()
    assert caught.value.exit_code == 5
    check("finetune=true")  # reads weights alone


def test_a_position_in_texts_belongs_to_the_step(check: Check) -> None:
    content = json.loads((FOLDER / "state.json").read_text())
    content["state"] |= {"data_rounds": [], "data_position": {"step": 3, "trail": 0}}
    write_state(content)
    with pytest.raises(ProblemsError, match="its position in the texts belongs to step 3"):
        check()
