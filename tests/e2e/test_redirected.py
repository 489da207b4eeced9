"""What long commands write into a file: lines, without terminal codes, whatever terminal they were started in."""

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from toy_runs import NEOX

pytestmark = pytest.mark.ranks

STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
CONFIG = """
engine: plain
num-layers: 1
hidden-size: 16
num-attention-heads: 2
seq-length: 16
max-position-embeddings: 16
hidden-dropout: 0
attention-dropout: 0
data-path: data/data
tokenizer-type: GPT2BPETokenizer
vocab-file: data/vocab.json
merge-file: data/merges.txt
split: 1,0,0
num-workers: 0
device: cpu
num_gpus: 2
train_micro_batch_size_per_gpu: 2
optimizer: {type: Adam, params: {lr: 0.01}}
lr-decay-style: constant
train-iters: 6
log-interval: 2
eval-iters: 0
save-interval: 6
peak-tflops: 1
sample-prompt: one two
"""
PREPARE = ("data", "prepare", "text.txt", "--out", "data", "--vocab-size", "300")
COMMANDS = {
    "prepare": PREPARE,
    "check": ("config", "check", "config.yml"),
    "plan": ("plan", "config.yml", "--on", "1x2"),
    "train": ("train", "config.yml", "--set", "save=save"),
    "restarted": ("train", "config.yml", "--set", "save=again", "--set", "max-restarts=1"),
    "generate": ("generate", "--load", "save", "--prompt", "one", "--max-new-tokens", "8"),
    "export": ("checkpoint", "export-hf", "save", "--out", "hf"),
    "doctor": ("doctor",),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code, and all that was written, by command."""
    folder = tmp_path_factory.mktemp("redirected")
    found = {"folder": (0, str(folder))}
    (folder / "text.txt").write_text("one two three four five six seven eight nine ten " * 800)
    (folder / "config.yml").write_text(CONFIG)
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    env |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "OMP_NUM_THREADS": "1"}
    for name, words in COMMANDS.items():
        with (folder / f"{name}.txt").open("wb") as file:
            done = subprocess.run([*NEOX, *words], cwd=folder, stdout=file, stderr=file, env=env, check=False)
        found[name] = done.returncode, (folder / f"{name}.txt").read_text()
    for log in folder.glob("*/logs/*.log"):
        found[str(log.relative_to(folder))] = 0, log.read_text()
    return found


def test_ctrl_c_saves_where_the_reader_of_the_output_ends_first(
    written: dict[str, tuple[int, str]], tmp_path: Path
) -> None:
    """`neox train | tee log`: the terminal interrupts both, and `tee` is gone at once."""
    assert written["prepare"][0] == 0
    folder = Path(written["folder"][1])
    command = [*NEOX, "train", "config.yml", f"--set=save={tmp_path}/save", "--set=train-iters=100000"]
    piped = f"{shlex.join([*command, '--set=save-interval=100000'])} 2>&1 | tee {tmp_path}/log"
    started = subprocess.Popen(["bash", "-c", piped], cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while "step 20/" not in ((tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""):
            assert time.monotonic() < until
            time.sleep(0.05)
        os.killpg(started.pid, signal.SIGINT)
        while not (tmp_path / "save" / "latest").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        os.killpg(started.pid, signal.SIGKILL)
    assert not (tmp_path / "save" / "failure.json").exists()


def test_no_command_writes_terminal_codes_into_a_file(written: dict[str, tuple[int, str]]) -> None:
    assert {name: code for name, (code, _) in written.items() if code and name != "doctor"} == {}, written
    assert {name: text for name, (_, text) in written.items() if STEERING.search(text)} == {}
    assert "6/6" in written["train"][1]
    assert "6/6" in written["restarted"][1]
    assert "save/logs/rank1.log" in written
    assert Path("again/logs/rank1.log").as_posix() in written
