"""`neox config check`, `neox train --dry-run` and `neox train` find the same problems, and end with the same code."""

import json
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from neox_core.cli import train as train_command
from neox_core.cli.main import neox
from neox_core.plan import resolve
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import to_json
from neox_core.plan.stored.saved import sealed
from neox_core.plan.stored.schedule import schedule_terms

Run = Callable[..., Result]
Prepare = Callable[[Path], Any]
SAVED = "load=saved"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, catalog: Any) -> Run:
    """A `neox` command line in a folder that holds c.yml; no rank is started."""
    monkeypatch.setattr(resolve, "load_plugins", lambda: catalog)
    monkeypatch.setattr(train_command.Supervisor, "run", lambda self: 0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("NEOX_DEBUG", raising=False)
    Path("c.yml").write_text(text)
    checkpoint(tmp_path, catalog)

    def _run(*arguments: str) -> Result:
        return CliRunner().invoke(neox, arguments)

    return _run


def checkpoint(folder: Path, catalog: Any) -> None:
    """What one rank would save after 6 steps of 4 samples, without the tensors, which no host reads."""
    plan = prepare_run([folder / "c.yml"], ["num-gpus=1"], catalog=catalog, start=False).plan
    saved = folder / "saved/step-00000006"
    saved.mkdir(parents=True)
    state = {"step": 6, "consumed_samples": 24, "consumed_tokens": 768}
    terms = schedule_terms(plan.optim)
    rest = {"plugins": {}, "neox_version": "0.1.0", "skipped_steps": 0, "loss_scaler": {}, "options": []}
    (saved / "state.json").write_text(json.dumps({"state": state, "schedule": terms, **rest}))
    (saved / "run.json").write_text(to_json(plan))
    seal(folder)
    (folder / "saved/latest").write_text(saved.name)


def seal(folder: Path) -> None:
    """What the manifest says of the files that the host reads."""
    saved = folder / "saved/step-00000006"
    seals = {}
    for name in ("state.json", "run.json"):
        data = (saved / name).read_bytes()
        seals[name] = {"size": len(data), "sha256": sha256(data).hexdigest()}
    (saved / "manifest.json").write_bytes(sealed({"step": 6, "files": seals}))


def edit(file: str, *path: str, value: Any) -> Prepare:
    """Put a value into a JSON file of the checkpoint."""

    def _edit(folder: Path) -> None:
        place = folder / "saved/step-00000006" / file
        content = inner = json.loads(place.read_text())
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        place.write_text(json.dumps(content))
        seal(folder)

    return _edit


def write(name: str, text: str) -> Prepare:
    def _write(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        seal(folder)

    return _write


def change(name: str) -> Prepare:
    """Another byte in a file of the checkpoint, which its manifest does not know of."""

    def _change(folder: Path) -> None:
        place = folder / "saved/step-00000006" / name
        before, digit, after = place.read_text().rpartition("6")
        place.write_text(f"{before}7{after}" if digit else "{}")

    return _change


def nothing(folder: Path) -> None: ...


def empty(folder: Path) -> None:
    (folder / "empty").mkdir()


HOSTS = write("hosts", "localhost slots=1\nworker-1 slots=1\n")
STATE = "saved/step-00000006/state.json"
RUN = "saved/step-00000006/run.json"

# name: (what is done to the folder, the `--set`, what else is on the command line, exit code, what is said)
CASES: dict[str, tuple[Prepare, list[str], list[str], int, str]] = {
    "as written": (nothing, [], [], 0, ""),
    "resumes": (nothing, [SAVED], [], 0, ""),
    "two problems": (nothing, ["num-layers=0", "sede=1"], [], 2, "unknown key"),
    "no such plugin": (nothing, ["norm=scalenorm"], [], 3, "scalenorm"),
    "no such file": (nothing, ["hostfile=gone"], [], 2, "cannot read gone"),
    "hosts without a launcher": (HOSTS, ["hostfile=hosts"], [], 2, "the plan has 2 hosts"),
    "another host": (write("hosts", "worker-1 slots=1"), ["hostfile=hosts"], [], 2, "which is not worker-1"),
    "no place for logs": (nothing, ["log-dir=c.yml"], [], 2, "cannot hold the logs"),
    "load is not there": (nothing, ["load=gone"], [], 5, "no checkpoint to resume from"),
    "load is not there, and may be": (nothing, ["load=gone"], ["--resume", "auto"], 0, ""),
    "load is empty": (empty, ["load=empty"], [], 0, "holds no checkpoint yet, so the run starts at step 0"),
    "load is empty, and save is not": (empty, ["load=empty", "save=saved"], [], 0, ""),
    "load is empty, and must": (empty, ["load=empty"], ["--resume", "must"], 5, "no checkpoint to resume"),
    "load is empty, for its weights": (empty, ["load=empty", "finetune=true"], [], 5, "no checkpoint to resume"),
    "load is save, and empty": (nothing, ["load=new", "save=new", "save-interval=5"], [], 0, "holds no checkpoint yet"),
    "load is save, and must": (nothing, ["load=new", "save=new"], ["--resume", "must"], 5, "no checkpoint to resume"),
    "load is save, for its weights": (
        nothing,
        ["load=new", "save=new", "finetune=true"],
        [],
        5,
        "no checkpoint to resume",
    ),
    "latest is a long name": (write("saved/latest", f"step-{'1' * 300}"), [SAVED], [], 5, "is not the name of"),
    "save is a file": (nothing, ["save=c.yml"], [], 2, "c.yml: cannot hold the run: c.yml is not a folder"),
    "save is below a file": (nothing, ["save=c.yml/a"], [], 2, "c.yml/a: cannot hold the run: c.yml is not a folder"),
    "load is a file": (nothing, ["load=c.yml"], [], 5, "no checkpoint to resume from"),
    "load of GPT-NeoX": (write("neox/latest", "global_step10"), ["load=neox"], [], 5, "checkpoints of GPT-NeoX"),
    "latest is not a name": (write("saved/latest", "../saved"), [SAVED], [], 5, "is not the name of a checkpoint"),
    "more ranks": (nothing, [SAVED, "num-gpus=2"], [], 5, "with 4 samples a step on 1 rank, and this run takes 8 on 2"),
    "another batch": (nothing, [SAVED, "train_batch_size=8"], [], 5, "this run takes 8 on 1 rank"),
    "more ranks, the same batch": (nothing, [SAVED, "num-gpus=2", "train_micro_batch_size_per_gpu=2"], [], 0, ""),
    "more ranks, weights alone": (nothing, [SAVED, "num-gpus=2", "finetune=true"], [], 0, ""),
    "another model": (nothing, [SAVED, "hidden-size=96"], [], 5, "hidden-size is 64 there, 96 here"),
    "other heads of the same width": (nothing, [SAVED, "num-attention-heads=8"], [], 0, ""),
    "grouped queries": (nothing, [SAVED, "num-kv-heads=2"], [], 5, "the width of all keys is 64 there, 32 here"),
    "another model's weights": (
        nothing,
        [SAVED, "num-layers=3", "finetune=true"],
        [],
        5,
        "num-unique-layers is 2 there, 3",
    ),
    "no steps are left": (nothing, [SAVED, "train-iters=6", "lr-decay-iters=100"], [], 0, "leaves nothing to train"),
    "other steps, so another decay": (nothing, [SAVED, "train-iters=200"], [], 5, "lr-decay-iters: 100 there, 200"),
    "another schedule": (nothing, [SAVED, "lr-decay-style=constant"], [], 5, "another learning-rate schedule"),
    "another schedule, wanted": (nothing, [SAVED, "train-iters=200", "override-lr-scheduler=true"], [], 0, ""),
    "another optimizer": (
        edit("run.json", "optim", "optimizer", value={"name": "SM3", "plugin": "neox-sm3"}),
        [SAVED],
        [],
        5,
        "holds the state of SM3",
    ),
    "no state": (edit("run.json", "checkpoint", "save_optimizer", value=False), [SAVED], [], 5, "with no-save-optim"),
    "save goes on": (nothing, ["save=saved", "save-interval=5"], ["--resume", "auto"], 0, ""),
    "save goes on otherwise": (
        nothing,
        ["save=saved", "save-interval=5", "num-gpus=2"],
        ["--resume", "auto"],
        5,
        "and this run takes 8",
    ),
    "own comes before load": (
        write("old/latest", "global_step1"),
        ["load=old", "save=saved", "save-interval=5"],
        ["--resume", "auto"],
        0,
        "",
    ),
    "state was changed": (change("state.json"), [SAVED], [], 5, "the file was changed after it was written"),
    "run.json was changed": (change("run.json"), [SAVED], [], 5, "the file was changed after it was written"),
    "the manifest was changed": (change("manifest.json"), [SAVED], [], 5, "the file was changed after it was written"),
    "state is not JSON": (write(STATE, "{"), [SAVED], [], 5, "state.json: cannot be read"),
    "state is deep": (write(STATE, "[" * 100_000), [SAVED], [], 5, "state.json: cannot be read"),
    "state is a list": (write(STATE, "[]"), [SAVED], [], 5, "not a JSON object"),
    "state is empty": (write(STATE, "{}"), [SAVED], [], 5, "not the state of a run"),
    "steps are text": (edit("state.json", "state", "step", value="6"), [SAVED], [], 5, "expected int @ $.state.step"),
    "steps without end": (edit("state.json", "state", "step", value=10**30), [SAVED], [], 5, "'step' must be <="),
    "run.json is empty": (write(RUN, "{}"), [SAVED], [], 5, "not a run file of format 1"),
    "run.json of no shape": (
        write(RUN, '{"format": 1, "cluster": {"hosts": [3]}, "optim": []}'),
        [SAVED],
        [],
        5,
        "run.json names no optimizer",
    ),
    "a name that steers": (
        edit("run.json", "optim", "optimizer", value={"name": "\x1b[31m" + "x" * 10_000, "plugin": "y"}),
        [SAVED],
        [],
        5,
        r"state of \x1b[31mxxx",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_they_agree(run: Run, tmp_path: Path, name: str) -> None:
    prepare, sets, more, code, says = CASES[name]
    prepare(tmp_path)
    words = ["c.yml", *(word for each in sets for word in ("--set", each)), *more]
    checked, as_json = run("config", "check", *words), run("config", "check", *words, "--json")
    dry, trained = run("train", *words, "--dry-run"), run("train", *words)
    assert [each.exit_code for each in (checked, as_json, dry, trained)] == [code] * 4, checked.output + trained.output
    assert checked.stderr == dry.stderr == trained.stderr
    assert says in checked.stderr
    assert "\x1b" not in checked.stderr
    assert max(map(len, checked.stderr.splitlines()), default=0) < 1000
    listed = [line for line in checked.stderr.splitlines() if not line.startswith("error: the configuration has")]
    assert len(json.loads(as_json.stdout)) == len(listed)


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["num-gpus=2"], "--set train-batch-size=4 --set train_micro_batch_size_per_gpu=2"),
        (["num-gpus=4"], "--set train-batch-size=4 --set train_micro_batch_size_per_gpu=1"),
        (["train_micro_batch_size_per_gpu=3"], "--set train-batch-size=4 --set train_micro_batch_size_per_gpu=2"),
        (["train_micro_batch_size_per_gpu=2"], "--set train-batch-size=4"),
        (["gradient_accumulation_steps=4", "num-gpus=2"], None),
        (["train_batch_size=16", "num-gpus=2", "train_micro_batch_size_per_gpu=null"], "--set train_batch_size=4"),
    ],
)
def test_the_words_of_a_refusal_mend_it(run: Run, sets: list[str], words: str | None) -> None:
    """What is said to keep the batch does, without a larger micro-batch."""
    refused = run("train", "c.yml", "--set", SAVED, *(word for each in sets for word in ("--set", each)))
    assert refused.exit_code == 5
    found = re.search(r"`([^`]*)` keeps the batch", refused.stderr)
    assert found is not None, refused.stderr
    assert words is None or found[1] == words
    keys = {word.partition("=")[0].replace("-", "_") for word in found[1].split()}
    kept = [each for each in (SAVED, *sets) if each.partition("=")[0] not in keys]  # a key is set once
    again = [*(word for each in kept for word in ("--set", each)), *found[1].split()]
    mended = run("train", "c.yml", *again, "--dry-run")
    assert mended.exit_code == 0, mended.output
    assert "4 samples a step" in mended.stdout


def test_a_batch_that_no_setting_gives_is_said_to_be_one(run: Run) -> None:
    refused = run("config", "check", "c.yml", "--set", SAVED, "--set", "num-gpus=3")
    assert refused.exit_code == 5
    assert "keeps the batch" not in refused.stderr
    assert "take a number of ranks that divides 4" in refused.stderr


def test_on_another_cluster_they_are_warnings(run: Run, tmp_path: Path) -> None:
    """`--on` looks at a plan from elsewhere: what is here does not stop it."""
    HOSTS(tmp_path)
    for sets in (["load=gone"], [SAVED], []):
        words = ["c.yml", *(word for each in sets for word in ("--set", each))]
        there = run("config", "check", *words, "--on", "2x1")
        assert there.exit_code == 0, there.output
        assert "warning: launcher: the local launcher starts ranks on this machine only" in there.stderr
        assert bool(sets) == ("warning: load: " in there.stderr)
    assert run("config", "check", "c.yml", "--on", "1x4").stderr == ""
