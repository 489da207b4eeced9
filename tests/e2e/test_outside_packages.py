"""Packages from outside in a short run on one rank: the command of a page, and an optimizer for API 1.

neox-example-lion as it was at commit 23e8218 is in tests/data/api-1: its own tests pass, and a run trains with it.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).resolve().parents[2]
LION = ROOT / "tests/data/api-1/neox-example-lion"
CONFIG = """
num-layers: 2
hidden-size: 32
num-attention-heads: 2
seq-length: 32
max-position-embeddings: 32
pos-emb: rotary
hidden-dropout: 0
attention-dropout: 0
tokenizer-type: CharLevelTokenizer
data-path: {folder}/text.jsonl
data-impl: text
split: 80,20,0
num-workers: 0
device: cpu
num_gpus: 1
engine: plain
train_micro_batch_size_per_gpu: 4
optimizer: {{type: Adam, params: {{lr: 0.01}}}}
lr-decay-style: constant
train-iters: 8
eval-interval: 8
eval-iters: 3
save: {folder}/saved
save-interval: 8
seed: 7
peak-tflops: 0.1
"""


def documents(folder: Path) -> None:
    """Write what the run reads."""
    lines = (json.dumps({"text": f"document {n} of a text that is read again"}) for n in range(400))
    (folder / "text.jsonl").write_text("\n".join(lines))


def test_it_gives_the_loss_of_the_run(build_page: Any, tmp_path: Path) -> None:
    build_page("command")
    documents(tmp_path)
    (tmp_path / "run.yml").write_text(CONFIG.format(folder=tmp_path))
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def neox(*argv: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "neox_core", *argv]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    said = neox("score", "run.yml", code=5)
    assert "no checkpoint here" in said
    neox("train", "run.yml")
    score = re.search(r"step-0*8: (\d+\.\d+) over 3 batches", neox("score", "run.yml"))
    logged = [json.loads(line) for line in (tmp_path / "saved/metrics.jsonl").read_text().splitlines()]
    (loss,) = [float(value) for line in logged for name, value in line.items() if name == "valid_loss"]
    assert score is not None
    assert float(score[1]) == pytest.approx(loss, abs=2e-4)


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A folder where the plugin of then is installed, which hides that of today."""
    folder = tmp_path / "earlier"
    shutil.copytree(LION, folder)
    project = tomli.loads((LION / "pyproject.toml").read_text("utf-8"))["project"]
    info = folder / "neox_example_lion-0.1.0.dist-info"
    info.mkdir()
    keywords = ",".join(project["keywords"])
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\nKeywords: {keywords}\n"
    )
    points = "".join(f"{name} = {value}\n" for name, value in project["entry-points"]["neox.plugins"].items())
    (info / "entry_points.txt").write_text(f"[neox.plugins]\n{points}")
    return folder


def run(folder: Path, *argv: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *argv], cwd=folder, env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_its_own_tests_pass(earlier: Path) -> None:
    said = run(earlier, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "tests/test_lion.py")
    assert " passed" in said


def test_a_run_trains_with_it(earlier: Path) -> None:
    """To the digit of today's."""
    documents(earlier)
    lion = "{type: ExampleLion, params: {lr: 1.0e-3, weight_decay: 0.1}}"
    config = CONFIG.format(folder=earlier).replace("{type: Adam, params: {lr: 0.01}}", lion)
    (earlier / "run.yml").write_text(config)
    where = "import os, neox_example_lion; print(os.path.realpath(neox_example_lion.__file__))"
    assert str(earlier) in run(earlier, "-c", where)
    run(earlier, "-m", "neox_core", "train", "run.yml")
    then = (earlier / "saved/metrics.jsonl").read_text()
    elsewhere = earlier / "today"
    elsewhere.mkdir()
    documents(elsewhere)
    (elsewhere / "run.yml").write_text(config.replace(str(earlier), str(elsewhere)))
    assert str(ROOT / "plugins/neox-example-lion") in run(elsewhere, "-c", where)
    run(elsewhere, "-m", "neox_core", "train", "run.yml")
    now = (elsewhere / "saved/metrics.jsonl").read_text()
    assert losses(then) == losses(now)


def losses(metrics: str) -> list[str]:
    found = [part for part in metrics.replace("{", ",").split(",") if '"loss"' in part or '"valid_loss"' in part]
    assert found
    return found


def test_a_plugin_in_one_file(tmp_path: Path) -> None:
    """Of docs/plugins/one-file.md: listed with its path, in ranks and run.json; a resume tells of a change."""
    page = (ROOT / "docs/plugins/one-file.md").read_text("utf-8")
    (source,) = re.findall(r"`spread\.py`:\n\n```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "mine").mkdir()
    file = tmp_path / "mine/spread.py"
    file.write_text(source)
    documents(tmp_path)
    config = CONFIG.format(folder=tmp_path).replace("{type: Adam, params: {lr: 0.01}}", "{type: SpreadSGD}")
    (tmp_path / "run.yml").write_text(config)
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONPATH", None)

    def neox(*argv: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "neox_core", *argv],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "no optimizer 'SpreadSGD'" in neox("config", "check", "run.yml", code=3)
    listed = neox("--plugins-dir", "mine", "plugins", "list")
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    assert f"note: spread 0+{digest} is {file}" in listed
    assert f"optimizer\tSpreadSGD\tspread\t0+{digest}\tok\tSGD in one file" in listed
    neox("--plugins-dir", "mine", "train", "run.yml", "--set", "exit-interval=4")
    assert json.loads((tmp_path / "saved/run.json").read_text())["plugins"]["spread"] == f"0+{digest}"
    file.write_text(source + "# changed\n")
    changed = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    said = neox("--plugins-dir", "mine", "train", "run.yml", "--resume", "auto")
    assert f"plugin spread: 0+{digest} wrote the checkpoint, 0+{changed} continues" in said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("torch.py", "torch is a module of this environment"),
        ("random.py", "random is a module of this environment"),
        ("no-module.py", "is not that of a module"),
        ("none.txt", "has 0 files"),
    ],
)
def test_files_that_are_refused(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("raise SystemExit('it ran')")
    done = subprocess.run(
        [sys.executable, "-m", "neox_core", "--plugins-dir", str(tmp_path), "plugins", "list"],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert "it ran" not in done.stdout + done.stderr
