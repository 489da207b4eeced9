"""`neox generate` on what `neox data prepare` and `neox train` have made of a text that can be learnt by heart."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert done.stderr == "note: each time 48 tokens are full, the text goes on from their newer half\n"
    assert done.stdout.startswith("five six seven eight nine ten eleven zero one")
    assert len(done.stdout.split()) > 60
    assert counted(done.stdout, "five")


def test_seed_and_one_checkpoint_of_several(trained: tuple[Path, str]) -> None:
    folder = trained[0]
    checkpoint = "save/" + (folder / "save" / "latest").read_text().strip()
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
    source = folder / "save" / (folder / "save" / "latest").read_text().strip()
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
