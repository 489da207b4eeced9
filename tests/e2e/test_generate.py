"""`neox generate` on what `neox data prepare` and `neox train` have made of a text that can be learnt by heart."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from neox_core.plan.stored.saved import find_checkpoint, read_sealed, sealed

pytestmark = pytest.mark.ranks

NEOX = [sys.executable, "-m", "neox_core"]
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]

CONFIG = """
num-layers: 2
hidden-size: 64
num-attention-heads: 2
seq-length: 32
max-position-embeddings: 48
pos-emb: rotary
activation: swiglu
hidden-dropout: 0
attention-dropout: 0
data-path: data/data
data-impl: mmap
tokenizer-type: GPT2BPETokenizer
vocab-file: data/vocab.json
merge-file: data/merges.txt
split: 1,0,0
eval-iters: 0
num-workers: 0
device: cpu
num_gpus: 2  # each with a part of the weights, which the sample at the end and `generate` put together
zero_optimization: {stage: 3}
train_micro_batch_size_per_gpu: 4
optimizer: {type: Adam, params: {lr: 0.01}}
lr-decay-style: constant
train-iters: 60
log-interval: 20
save: save
save-interval: 60
sample-prompt: two three four
"""


def neox(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*NEOX, *arguments], cwd=folder, capture_output=True, text=True, timeout=150, env=dict(os.environ), check=False
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a finished run, and what the run printed."""
    folder = tmp_path_factory.mktemp("counting")
    (folder / "text.txt").write_text(" ".join(WORDS * 2500))
    (folder / "config.yml").write_text(CONFIG)
    prepared = neox(folder, "data", "prepare", "text.txt", "--out", "data", "--vocab-size", "300")
    assert prepared.returncode == 0, prepared.stderr
    run = neox(folder, "train", "config.yml")
    assert run.returncode == 0, run.stdout + run.stderr
    return folder, run.stdout


def counted(text: str, first: str) -> bool:
    """Whether the whole words of `text` count on from `first`; the last one may be cut."""
    words = text.split()[:-1]
    start = WORDS.index(first)
    return words == [WORDS[(start + place) % 12] for place in range(len(words))]


def test_greedy_knows_the_text_by_heart(trained: tuple[Path, str]) -> None:
    """Also beyond the 48 positions that the model can see, which is said."""
    arguments = ("--load", "save", "--prompt", "five six seven eight", "--temperature", "0", "--max-new-tokens", "80")
    done = neox(trained[0], "generate", *arguments)
    assert done.returncode == 0, done.stderr
    slides, speed = done.stderr.splitlines()
    assert slides == "note: each time 48 tokens are full, the text continues from their newer half"
    assert speed.startswith("note: 80 tokens in ")
    assert done.stdout.startswith("five six seven eight nine ten eleven zero one")
    assert len(done.stdout.split()) > 60
    assert counted(done.stdout, "five")


def test_seed_and_one_checkpoint_of_several(trained: tuple[Path, str]) -> None:
    folder = trained[0]
    checkpoint = "save/" + (folder / "save" / "latest").read_text().split()[0]
    hot = ("--prompt", "one", "--temperature", "3", "--top-p", "1", "--top-k", "200", "--max-new-tokens", "20")
    runs = [
        subprocess.Popen(
            [*NEOX, "generate", "--load", load, "--seed", seed, *hot],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for load, seed in (("save", "1"), (checkpoint, "1"), ("save", "2"))
    ]
    texts = [run.communicate(timeout=150)[0] for run in runs]
    assert texts[0] == texts[1] != texts[2]
    assert not counted(texts[0], "one")


def test_prompts_of_a_file_and_of_a_user(trained: tuple[Path, str]) -> None:
    """As JSON lines up to a stop string, and typed line by line."""
    folder = trained[0]
    (folder / "prompts.jsonl").write_text(
        '{"prompt": "five six seven eight", "id": 7}\n{"prompt": "two three four five six"}\n'
    )
    greedy = ("--load", "save", "--temperature", "0", "--max-new-tokens", "30")
    done = neox(folder, "generate", *greedy, "--prompts", "prompts.jsonl", "--json", "--stop", " ten e")
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert first | {"tokens": 0} == {
        "id": 7,
        "prompt": "five six seven eight",
        "text": " nine",
        "end": "stop",
        "prompt_tokens": first["prompt_tokens"],
        "tokens": 0,
    }
    assert counted(f"{second['prompt']}{second['text']} ten", "two")
    assert "tokens/s" in done.stderr
    typed = subprocess.run(
        [*NEOX, "generate", *greedy, "--interactive", "--stop", " ten"],
        cwd=folder, input="five six seven eight\n" * 2, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert typed.stdout == "five six seven eight nine\n" * 2, typed.stderr
    (folder / "prompts.txt").write_bytes(b"five six\n\xff\n")
    wrong = neox(folder, "generate", *greedy, "--prompts", "prompts.txt")
    assert wrong.returncode == 4
    assert "prompts.txt:2: is not UTF-8" in wrong.stderr
    assert wrong.stdout == ""


def test_a_prompt_that_is_long(trained: tuple[Path, str]) -> None:
    """One that is longer than a word of a command line once it is JSON, and one that takes too much memory."""
    folder = trained[0]
    long = "\u0436" * 30_000
    done = neox(folder, "generate", "--load", "save", "--max-new-tokens", "1", "--prompt", long)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(long)
    assert re.search(r"of the [\d,]+ tokens of the prompt the model sees the last", done.stderr)
    (folder / "long.txt").write_text("five\n" + "six " * (1 << 18) + ".\n")
    wrong = neox(folder, "generate", "--load", "save", "--prompts", "long.txt")
    assert (wrong.returncode, wrong.stdout) == (4, "")
    assert "long.txt:2: the prompt has 1,048,577 characters" in wrong.stderr


def test_the_run_ends_with_a_sample(trained: tuple[Path, str]) -> None:
    printed = trained[1]
    assert "sample:\ntwo three four" in printed


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--load", "nowhere", "--prompt", "x"), 5, "no checkpoint here"),
        (("--load", "save", "--prompt", "x", "--top-p", "0"), 2, "top-p"),
        (("--load", "save", "--prompt", "x", "--temperature", "-1"), 2, "temperature"),
        (("--load", "save"), 2, "--prompt"),
        (("--load", "save", "--prompt", "x", "--prompts", "config.yml"), 2, "--prompt"),
        (("--load", "save", "--prompt", "x", "--stop", ""), 2, "--stop"),
        (("--load", "save", "--prompt", "x", "--temperature", "nan"), 2, "temperature"),
    ],
)
def test_mistakes_are_said_without_a_traceback(
    trained: tuple[Path, str], arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = neox(trained[0], "generate", *arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_damaged_checkpoint_is_refused(trained: tuple[Path, str], tmp_path: Path) -> None:
    folder = trained[0]
    source = folder / "save" / (folder / "save" / "latest").read_text().split()[0]
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in source.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    weights = next(damaged.glob("*weights*"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    done = neox(folder, "generate", "--load", str(damaged), "--prompt", "x")
    assert done.returncode == 5
    assert weights.name in done.stderr


def resealed(checkpoint: Path, out: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy whose run.json somebody has changed who makes all checksums anew."""
    shutil.copytree(checkpoint, out)
    manifest, _ = read_sealed(out / "manifest.json")
    run = json.loads((out / "run.json").read_text())
    change(run)
    data = json.dumps(run).encode()
    (out / "run.json").write_bytes(data)
    manifest["files"]["run.json"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (out / "manifest.json").write_bytes(sealed(manifest))
    return out


def components(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and "target" in value:
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from components(each)


def test_no_command_runs_what_a_checkpoint_names(trained: tuple[Path, str], tmp_path: Path) -> None:
    """All components of its run.json are this module, which leaves a file when it is imported, or `os.system`."""
    folder = trained[0]
    (tmp_path / "evil.py").write_text("import pathlib; pathlib.Path('imported').touch(); Settings = dict")
    checkpoint = find_checkpoint(folder / "save")
    assert checkpoint is not None

    def attack(run: dict[str, Any]) -> None:
        for each in components(run):
            each |= {"target": "os:system", "settings_class": "evil:Settings"}

    def attack_unknown(run: dict[str, Any]) -> None:
        attack(run)
        run["data"]["tokenizer"] |= {"plugin": "evil", "settings": {"command": "touch called"}}

    resealed(checkpoint, tmp_path / "known", attack)
    resealed(checkpoint, tmp_path / "unknown", attack_unknown)
    prompt = ("--prompt", "five six seven eight", "--temperature", "0", "--max-new-tokens", "9")
    sets = ("save=null", "save-interval=null", "use-checkpoint-lr-scheduler=true", "train-iters=61", "num-workers=0")
    resume = ("train", "config.yml", "--run-dir", str(tmp_path / "run"), *(f"--set={each}" for each in sets))
    known, unknown = str(tmp_path / "known"), str(tmp_path / "unknown")
    commands = {
        "generate": ("generate", *prompt, "--load", known),
        "generate unknown": ("generate", *prompt, "--load", unknown),
        "export-hf": ("checkpoint", "export-hf", known, "--out", str(tmp_path / "out")),
        "diff": ("config", "diff", known, unknown),
        "train": (*resume, f"--set=load={known}"),
    }
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = {
        name: subprocess.run(
            [*NEOX, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=150, check=False
        )
        for name, words in commands.items()
    }
    assert done["generate"].stdout.startswith("five six seven eight nine ten"), done["generate"].stderr
    assert done["generate unknown"].returncode == 3
    assert "error: tokenizer evil:GPT2BPETokenizer" in done["generate unknown"].stderr
    assert "is not installed here" in done["generate unknown"].stderr
    assert done["train"].returncode == 0, done["train"].stderr
    assert "at step 60" in done["train"].stdout
    assert not [each.stderr for each in done.values() if "Traceback" in each.stderr]
    assert not [path for name in ("imported", "called") for path in (*folder.rglob(name), *tmp_path.rglob(name))]


def test_a_vocabulary_that_was_trained_again_is_told(trained: tuple[Path, str], tmp_path: Path) -> None:
    """Its ids are those of other tokens: nothing uses the old weights, or the old dataset, with it unseen."""
    folder = tmp_path / "again"
    shutil.copytree(trained[0], folder)
    file = folder / "data" / "vocab.json"
    ids = json.loads(file.read_text())
    ids["a"], ids["b"] = ids["b"], ids["a"]
    file.write_text(json.dumps(ids))
    said = "its run had another tokenizer than this GPT2BPETokenizer (merge_file: data/merges.txt, vocab_file: data/"

    done = neox(folder, "generate", "--load", "save", "--prompt", "one", "--max-new-tokens", "2")
    assert done.returncode == 5
    assert f"error: save/step-00000060: {said}vocab.json)\n  put back the files" in done.stderr

    done = neox(folder, "checkpoint", "export-hf", "save", "--out", "hf")
    assert done.returncode == 0
    assert said in done.stdout + done.stderr
    assert not (folder / "hf" / "tokenizer.json").exists()

    checked = neox(folder, "config", "check", "config.yml")
    assert "warning: data-path: data/data was prepared with another tokenizer than GPT2BPETokenizer" in checked.stderr
    (folder / "more.yml").write_text("train-iters: 1\nload: save\nfinetune: true\nsave: tuned\nsample-prompt: null\n")
    tuned = neox(folder, "train", "config.yml", "more.yml", "--last-wins")
    assert tuned.returncode == 0, tuned.stderr
    assert said in tuned.stdout + tuned.stderr
