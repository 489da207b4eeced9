"""`neox runs` beside folders whose state is known, because the test has made it."""

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neox_core.interpreter import python

pytestmark = pytest.mark.ranks
LINES = [{"step": 10, "time": 1.0, "loss": 4.25, "lr": 0.1}, {"step": 10, "time": 1.0, "valid_loss": 4.5}]


def listed(folder: Path) -> dict[str, dict[str, Any]]:
    words = [*python("neox_core"), "runs", str(folder), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return {Path(each["folder"]).name: each for each in json.loads(done.stdout)}


def test_states_by_what_lies_in_the_folder(make_run: Callable[..., Path], tmp_path: Path) -> None:
    finished, running, stopped, killed, failed, asked = (
        make_run(f"deep/{name}", LINES) for name in ("finished", "running", "stopped", "killed", "failed", "asked")
    )
    for each in (running, killed, failed, asked):
        (each / ".unfinished").touch()
    (stopped / ".stopped").touch()
    (finished / ".run.lock").touch()
    report = {"rank": 1, "exit_code": 1, "message": "ZeroDivisionError: planted", "hint": "", "time": 5.0}
    (failed / "failure.rank1.json").write_text(json.dumps(report))
    later = {"rank": 0, "message": "connection closed", "time": 1.0, "lost_peer": True}
    (failed / "failure.rank0.json").write_text(json.dumps(later))
    (asked / "failure.json").write_text(json.dumps({"rank": 0, "exit_code": -15, "message": "killed", "asked": True}))
    (running / "failure.json").write_text(json.dumps(report))  # of a try before this one
    with (running / ".run.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = listed(tmp_path)
        assert found["running"]["state"] == "running"
    assert {name: each["state"] for name, each in found.items()} == {
        "finished": "finished",
        "running": "running",
        "stopped": "stopped",
        "killed": "failed",
        "failed": "failed",
        "asked": "stopped",
    }
    assert found["failed"]["why"] == "ZeroDivisionError: planted"  # of the rank that failed first, by itself
    assert "killed" in found["killed"]["why"]
    one = found["finished"]
    assert (one["step"], one["last_step"], one["loss"], one["valid_loss"]) == (10, 12, 4.25, 4.5)
    assert 0 <= one["age_s"] < 600


def test_a_run_of_another_machine_runs_while_it_writes(make_run: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_run("far", LINES)
    (folder / ".unfinished").touch()
    line = {"step": 0, "time": 1.0, "start": {"host": "another.example"}}
    (folder / "messages.jsonl").write_text(json.dumps(line) + "\n")
    assert listed(tmp_path)["far"]["state"] == "running"
    for name in ("run.json", "metrics.jsonl"):
        os.utime(folder / name, (1e9, 1e9))
    assert listed(tmp_path)["far"]["state"] == "failed"


def test_a_real_run_while_it_trains_and_when_it_was_killed(trained: Path, tmp_path: Path) -> None:
    words = [*python("neox_core"), "train", str(trained.parent / "config.yml"), "--run-dir", str(tmp_path / "run")]
    words += ["--set", "train-iters=1000000", "--set", f"save={tmp_path}/save", "--set", "save-interval=1000000"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        while not listed(tmp_path).get("run", {}).get("step"):
            assert process.poll() is None
            time.sleep(0.2)
        assert listed(tmp_path)["run"]["state"] == "running"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    found = listed(tmp_path)
    assert {name: each["state"] for name, each in found.items()} == {"run": "stopped"}  # no checkpoint is a run


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1, "train": 5}', "[" * 100_000, '{"format": 2, "train": {}}']
)
def test_a_run_file_that_is_none_is_a_line_of_its_own(make_run: Callable[..., Path], tmp_path: Path, text: str) -> None:
    make_run("good", LINES)
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "run.json").write_text(text)
    found = listed(tmp_path)
    assert found["good"]["state"] == "finished"
    assert found["bad"]["state"] == "unreadable"
    assert str(bad) in found["bad"]["why"]


def test_lines_for_a_reader_have_no_escape_sequences(make_run: Callable[..., Path], tmp_path: Path) -> None:
    make_run("\x1b[31mred\u202e", LINES)
    (tmp_path / "loop").symlink_to(tmp_path)
    done = subprocess.run([*python("neox_core"), "runs", str(tmp_path)], capture_output=True, text=True, check=True)
    head, line = done.stdout.splitlines()
    assert head.split() == ["state", "step", "loss", "valid", "loss", "age", "run"]
    assert line.split()[:4] == ["finished", "10/12", "4.2500", "4.5000"]
    assert line.endswith(r"\x1b[31mred\u202e")
    none = tmp_path / "none"
    none.mkdir()
    done = subprocess.run([*python("neox_core"), "runs", str(none)], capture_output=True, text=True, check=True)
    assert done.stdout == f"no runs below {none}\n"
